"""Progress on a terminal, and the HTML and SVG of a report.

progress  the progress of work on many hosts
text_table  a table of plain rows
event_rows  the events of a run, shorter
host_table  a table of hosts (`check`)
html      a report as one HTML file
page_style  its style sheet
log_section  its log, with a search field
svg       line charts
bands     many ranks in one picture
"""
