"""The part that this node plays in the gang: the head, or a follower of it. The recorder runs it.

head             the head's end of the links; runs the gang
follower         the other nodes' end of the link
transport        the connections that a node keeps in either role
detour           connections between nodes that are not the head
node_watch       when the head last received something from each node
server_probes    whether the SSH server of a silent node answers
rank_silence     for how long the ranks have printed nothing
rank_network     whether a node reaches the head on the network of the ranks
network_watch    on the head: when ranks hang because it does not
loss_watch       whether a rank has printed a loss that is not finite
gang_log         the events of the gang, as a file
finisher         carries out `finish`: signals, waits for the snapshot, stops
tie              when a run ends because its job has ended
outputs_advice   notes at a restart that what rank 0 has saved stays on its host
resumption       has the output folders of all nodes brought to agreement: on the head
all_hosts        the addresses of all hosts, for commands that name them
output_server    the process that sends and fetches files of the output folder, with `run.resume`
narration        what is said of changes of the gang's state: lines for the log, and news
teller           says it, and notifies people
reporter         notifies people in place of a head that is silent, and takes that back
shown_state      what `ps` shows of the whole run

With `run.head_lost: elect`, the nodes elect another head when theirs is lost:
electing            a node: changes between the roles of head and follower
elected_head        the head, which needs a majority for all it decides
elected_follower    the other nodes
voter               the election, with the clock and the disk of this node
election_disk       the ballot and the copy of the log on disk
replicated_log      the events of the gang, as a log that a majority has
election_messages   encodes and checks the messages
"""
