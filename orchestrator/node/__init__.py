"""The node program: what runs on a host. Standard library only, Python 3.8 syntax, imports nothing from outside.

daemon  puts guard and recorder together: the verbs of the same names

Its packages, from top to bottom; each imports only those below:
`serve` lives as long as an SSH session, and does what the controller asks;
`roles` makes the recorder of one node the head of the run, and those of the others its followers;
`resume` copies output folders and snapshots between hosts;
`recorder` writes the log, `guard` owns the processes; both live as long as the run;
`ranks` starts and ends one attempt, `link` connects the hosts;
`gang` decides, without clock, network or disk; `host` asks the machine; `preload` runs in the user's python.
"""

PROTOCOL = 5  # of the frames between controller and relay; changes together with docs/protocol.md and the golden bytes
