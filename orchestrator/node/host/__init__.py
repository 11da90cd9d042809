"""The machine: processes, network, state.

state          the private folder of ddp-orch on this host, and how files in it are written
processes      finds, identifies and signals processes of a run, by /proc
sweep          kills the processes of a run
engines        the command lines of container engines
containers     finds and removes the containers of a run
json_lines     reads files with one JSON value per line
small_files    reads small files of the kernel, opens private files
run_command    runs a program with a time limit
network        addresses and interfaces
machine        load of processors, memory, interfaces and GPUs
nvml           GPUs, by the library of the driver
health         measures what may have broken since an earlier measurement
guard_locks    takes the locks of a run
beside_code    the files that a run has written to relative paths
memory_folder  the folder of a run on /dev/shm
ledger         remembers one line for each run that ended here
login_session  whether processes outlive the login, and how to make them
init_process   whether process 1 reaps orphans
user_units     the units of `run.autostart` of the user's systemd
crontab        the lines of `run.autostart` in the user's crontab
"""
