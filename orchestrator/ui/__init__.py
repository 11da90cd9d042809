"""Progress on a terminal, and the HTML and SVG of a report."""
