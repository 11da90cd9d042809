"""The recorder: writes the log of a run on this host. It may be killed at any moment; the guard starts another one.

recorder         its loop
journal          the log: pieces of output with their times
last_words       what the last lines of a rank say of why it ended
history          samples of this host, for `report`
upkeep           protects the files of the run from cleaners of old files
health_check     measures the health of this host in a process of its own
saved_line       finds the line of a saved snapshot
snapshot_time    how long the script takes to save one
notify           sends the user's notifications
mail             sends a notification by mail
webhooks         the forms in which services take a notification
webhook_connections  call a function before a message is sent on them
wait_news        drops messages that the run waits when it does not any more, and takes them back
"""
