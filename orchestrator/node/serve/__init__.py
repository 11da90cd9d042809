"""Lives as long as an SSH session.

relay           answers the requests of one SSH session; the table of requests is here
wire            encodes and decodes frames

probe           gathers the facts of this host, from the modules below
facts           facts from files of the kernel: memory, disks, limits, ports
gpus            GPUs, by nvidia-smi
dns             name resolution, timed
container_probe  what this host has for containers
probe_python    runs in the user's python: versions, limits, the script
images          copies container images between hosts
mesh            tests the network to other hosts

prepare         tries everything that can fail in a launch, then starts a guard
unpack          unpacks the code from a tar stream
led_last        where rank 0 of the earlier runs of a name ran last
link_port       opens the link port of a node other than the head
locks           names the locks of a run: its GPUs, its name
retire          finds and removes ended runs, code and node programs that `run.keep` does not keep

runs            lists the runs of this host
other_users     lists the runs of other users on this host
follow          streams the log of a run
grep            streams the lines that match a regular expression, in a process of its own
journal_reader  reads a journal while it is written
search          searches a stream of the journal
figures         finds loss, step and other figures in lines; the controller uses it too
sample          what this host and a run do at the moment, for `top`
evidence        what this host knows about a failure beyond the output
flight          summarises the flight-recorder dumps of NCCL

stop            stops a run and verifies that nothing is left
leftovers       finds and removes leftovers of ended runs
code            sends the code of a run, for a host that is added
membership      asks the head to continue without a host or with one more
rank_signals    signals ranks, and waits for the line of a snapshot
rejoin          starts a guard for a run after a restart of this host, or after guard and recorder were killed
at_boot         the same, started by cron
ticket          asks the guard here for what a guard on another host needs

run_queue       keeps the tickets of runs that wait for their turn
shell           runs a command for the user in the environment of a run
shell_exec      turns into that command

outputs         lists and sends files that a run wrote
output_folders  lists and removes output folders
"""
