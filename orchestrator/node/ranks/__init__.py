"""The processes of one attempt on this host. The guard starts and ends them.

launch             argv and environment of each; the network interface of this host is chosen here
placeholders       fills in the placeholders of a launcher
host_variables     the variables of a command that is started once per host
spawner            starts one process
job                turns into a process of the run: environment, folder, output, then exec
preloader          the process that has imported the modules of `run.preload` and forks ranks
contained          starts a command in a container, and is the first process there
container_engine   what the tree must know of the engine that starts containers
container_remover  removes what is left of containers, in a process of its own
tree               starts, watches and stops all of them
fifos              through which the recorder gets the output of ranks
rank_failure       what is known of a process that has failed
stacks             prints the stacks of ranks that hang
"""
