"""Methods of comparison, one per file."""
