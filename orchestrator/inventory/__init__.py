"""YAML -> Inventory.

schema         the keys: the checks, the defaults, the example and the reference come from this table
host_entries   the list of hosts: names, ranges and mappings
model          the Inventory that the other packages use
writing        an Inventory as YAML and as JSON
recovery       checks the keys about lost hosts
settings       `up --set`: values that replace those of the file
nearest_key    which key was probably meant by an unknown one
notifications  the values of the keys of `notify`
values         kinds of values: how to read, check and write each
document       the document of a file, or what a file of another tool is
foreign_tasks  what the keys of a task of another tool become
yaml_source    YAML -> nodes that know their line
paths          where relative paths start
text_files     read a file that a user names
docs           the example and the reference
any_of         `any 2 of [a, b, c]`
selection      selects hosts: `--hosts PATTERN`
hostnames      names of hosts: check, expand ranges, select
launcher_rows  names of launchers, and their placeholders
launcher_variables  the launcher that sets a variable
container      the image that the ranks of a host run in
via            how a host is reached: paramiko, openssh or a command
run_ids        ids and names of runs
advice         the command lines in messages
"""
