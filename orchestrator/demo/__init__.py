"""Two hosts on this machine with an embedded SSH server, and a training run on them.

demo          the command
two_hosts     the hosts
with_torch    finds a Python with torch for the ranks
crash         kills a rank in the middle
embedded_ssh  the SSH server
"""
