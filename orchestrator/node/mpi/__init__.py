"""A real mpirun as the agent of a run: it starts the daemons of MPI on the other hosts through us, not through SSH.

    head:    guard ──> mpirun_head ──> mpirun ──> ranks
                            │             └──> remote_command HOST WORDS
    others:  guard ──> mpirun_worker ──> the daemon of MPI ──> ranks

agent           the verb `mpirun`: one of the two below
mpirun_head     on the head: waits for the other hosts, starts mpirun, and passes its commands to them
mpirun_worker   on the others: runs these commands
remote_command  what mpirun takes for ssh
implementations  what Open MPI and MPICH want on their command lines
mpi_rank        between mpirun and a rank: keeps mpirun from killing the ranks of all hosts
place           what the guard tells the agent about this host and attempt
"""
