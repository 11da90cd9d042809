"""Connections between the hosts of a run, on the cluster network: authenticated both ways, JSON objects.

link             one connection
acceptor         accepts connections and authenticates them
messages         checks messages
contacts         where the nodes can be reached
peers            the interface of head and follower
attempt_phase    what a node's newest attempt is doing, as messages and `ps` name it
"""
