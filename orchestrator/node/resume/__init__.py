"""Brings folders to agreement before an attempt (`run.resume`, `run.memory_limit`). Processes of their own.

The recorder of each host starts a server, that of the head also a leader, when the gang asks (roles/resumption.py).

copies         which host needs which files from which one. Pure
output_tree    an output folder: lists it, puts files into it, moves files aside
channel        messages and bytes between these processes, by the handshake of the link
server         the part of one host: lists, sends files, fetches files
leader         the part of the head: has all hosts list, plans, has them copy
parts          which snapshot in memory all hosts can have, and which parts each of them needs. Pure
memory_tree    the folder in memory: lists snapshots, puts them into it, removes old ones
ring           the part of one host for snapshots in memory: copies those of the host before it while ranks run
memory_leader  the part of the head for snapshots in memory
"""
