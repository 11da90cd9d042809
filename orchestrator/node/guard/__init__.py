"""The guard: owns the processes of a run on this host, and ends them exactly.

guard            its loop
guard_process    starts it
control          its socket for the relay, while a run is prepared and started
requests         its socket for other processes of this user, later
team_requests    requests to drain or to add hosts, and the answers
permit           until when the ranks may run without a message from the head
attempts         the attempts of the run on this host
snapshot_request  asks their ranks for a snapshot
process_record   which processes are ours, on disk
child            its handle on the recorder
shutdown         how the run ends on this host
exit_record      writes exit.json, and the line of the ledger
succession       starts a new guard in place of a killed one
past             what that guard must know
autostart        `run.autostart`: the command that rejoins the run when this host is booted
warm             finds preloaders that `run.warm` keeps between runs
keeper           the process that keeps one
"""
