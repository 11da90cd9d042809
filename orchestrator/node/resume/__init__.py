"""Brings the output folders of a run to agreement before an attempt (`run.resume`). Processes of their own.

The recorder of each host starts a server, and that of the head a leader, when the gang asks for it (run/resumption.py).

copies       which host needs which files from which one. Pure
output_tree  an output folder: lists it, puts files into it, moves files aside
channel      messages and bytes between these processes, by the handshake of the link
server       the part of one host: lists, sends files, fetches files
leader       the part of the head: has all hosts list, plans, has them copy
"""
