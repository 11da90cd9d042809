"""Progress on a terminal, and the HTML and SVG of a report.

progress  the progress of work on many hosts
html      a report as one HTML file
svg       line charts
bands     many ranks in one picture
"""
