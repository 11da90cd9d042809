"""A byte pipe to a host. The only importer of fabric and paramiko.

pipe            the interface: a pipe to one command. The other packages know only this and dialer
noise           finds the marker with which a command begins, after what a login shell prints
dialer          connects to the hosts of an inventory
quoting         quotes arguments for the login shell
config          resolves what `ssh HOST` would do
config_cache    caches it for hosts that ssh_config treats alike
tcp             opens the byte stream to sshd
jump_hosts      shares one connection to each jump host
login           logs in and opens pipes
host_keys       checks host keys, explains why one is not trusted, adds new ones
known_hosts     reads and extends the known_hosts files
keys            loads the user's keys, from the agent and from files
program_dialer  connects to hosts that a program reaches (`via`)
program         opens pipes over such a program
openssh         the command line of the `ssh` program, and why it failed
paramiko_fixes  fixes paramiko's transport
"""
