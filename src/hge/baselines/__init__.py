"""What the paper's tables compare Gated Experts with, one method per file."""
