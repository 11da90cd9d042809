"""Decides for all hosts of a run. Pure: no clock, no network, no disk. The head runs it.

gang            (state, event) -> (state, actions). A lost host becomes a restart here
gang_state      its state
gang_events     its events and actions
gang_orders     what each node has to do, and the state that `ps` shows
gang_failures   failures that no process reported
team            who takes part in the next attempt, and with which ranks
gate            whether the hosts of the next attempt are healthy
agreement       whether their output folders agree, with `run.resume`
newcomers       a host is added on request
drain           a host leaves on request
finish          when to signal and to stop, for `run.walltime`
suspicion       judges the silence of nodes: who is suspect, who is lost
election        who is the head, and until when ranks may run
election_state  what a node knows of an election
election_log    its log, and who votes by it
"""
