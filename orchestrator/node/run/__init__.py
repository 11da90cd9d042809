"""Lives as long as the run. Never imports `serve`.

The guard owns the processes of a run on this host:
guard            its loop
guard_process    starts it
daemon           puts guard and recorder together: the verbs of the same names
control          its socket for the relay, while a run is prepared and started
requests         its socket for other processes of this user, later
permit           until when the ranks may run without a message from the head
attempts         the attempts of the run on this host
attempt_phase    what the newest attempt is doing here
launch           argv and environment of an attempt; the interface of this host is chosen here
placeholders     fills in the placeholders of a launcher
spawner          starts one process
preloader        its handle on the process that has imported the modules of `run.preload` and forks ranks
warm             finds preloaders that `run.warm` keeps between runs
keeper           the process that keeps one
tree             starts, watches and stops the processes of one attempt
job              turns into a process of the run: environment, folder, output, then exec
contained        starts a command in a container, and is the first process there
container_remover  removes what is left of containers, in a process of its own
stacks           prints the stacks of ranks that hang
child            its handle on the recorder
shutdown         how the run ends on this host, and its exit record
exit_record      writes exit.json, and the line of the ledger
succession       starts a new guard in place of a killed one
past             what that guard must know
autostart        `run.autostart`: the command that rejoins the run when this host is booted

The recorder writes the log and keeps the link to the other hosts:
recorder         its loop
journal          the log: pieces of output with their times
history          samples of this host, for `report`
upkeep           protects the files of the run from cleaners of old files
health_check     measures the health of this host in a process of its own
shown_state      what `ps` shows of the whole run
saved_line       finds the line of a saved snapshot
snapshot_time    how long the script takes to save one
peers            the interface of head and follower
head             the head's end of the links; runs the gang
follower         the other nodes' end of the link
rank_silence     for how long the ranks have printed nothing
link             one connection: authenticated, JSON objects
transport        the connections that a node keeps whatever its role is
acceptor         accepts connections and authenticates them
messages         checks messages
contacts         where the nodes can be reached
detour           connections between nodes that are not the head
node_watch       when the head last received something from each node
gang_log         the events of the gang, as a file
tie              when a run ends because its job has ended
finisher         carries out `finish`: signals, waits for the snapshot, stops
team_requests    requests to drain or to add hosts, and the answers
output_server    the process that sends and fetches files of the output folder, with `run.resume`
resumption       has the output folders of all nodes brought to agreement: on the head
notify           sends the user's notifications
narration        lines for the log about changes of the gang's state

With `run.head_lost: elect`, the nodes elect another head when theirs is lost:
electing            a node: changes between the roles of head and follower
elected_head        the head, which needs a majority for all it decides
elected_follower    the other nodes
voter               the election, with the clock and the disk of this node
election_disk       the ballot and the copy of the log on disk
replicated_log      the events of the gang, as a log that a majority has
election_messages   encodes and checks the messages
"""
