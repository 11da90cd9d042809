"""The node program: what runs on a host. Standard library only, Python 3.8 syntax, imports nothing from outside."""

PROTOCOL = 5  # of the frames between controller and relay; changes together with docs/protocol.md and the golden bytes
