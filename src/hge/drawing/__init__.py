"""What figures and pages share: colours, SVG, the figure of losses, the frame of a page."""
