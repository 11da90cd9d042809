"""Lives as long as the run. Never imports `serve`.

guard      the process that owns the run on this host; attempts, tree and child are its processes, shutdown their end
permit     until when the ranks may run without a word from the head
succession starts a guard in place of a killed one; past is what that guard has to know
control    the guard's socket, for the relay
recorder   writes the journal and keeps the link to the other hosts
gang       decides for all hosts, on the head: (state, event) -> (state, actions). Pure. A lost host becomes a restart
           here; team chooses who takes part in the next attempt
election   decides who is the head, and until when ranks may run: the same on every node. Pure. Not used by runs yet
head       the head's end of the links, follower the other hosts'; link is the connection between them
launch     the argv and environment of an attempt on this host: its interface is chosen here
"""
