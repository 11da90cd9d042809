"""Talk to the node program on many hosts. The failure of some hosts is a result.

fleet         sessions to all hosts, and one task on each in parallel
session       one host: starts the node program, sends requests, receives answers
host_command  a command over a bare channel, without the node program
limits        how long each operation may take
bootstrap     the command line that installs and starts the node program
node_program  packs the node program
claims        checks what each host may say about a run
"""
