"""Two hosts on this machine with an embedded SSH server, and a training run on them.

demo          the command
two_hosts     the hosts
embedded_ssh  the SSH server
"""
