"""Hosts from what people have: schedulers, hostfiles, other tools.

reference    what names an inventory on the command line: a file, `@SOURCE`, or both
read_source  reads a source; the parsers below read nothing
source_host  a host in a source
fill_in      the hosts of a source in an inventory
hostfile     hostfiles of MPI, DeepSpeed, PBS and others
ssh_line     command lines of ssh
nodelist     compressed lists of Slurm
schedulers   jobs of Slurm, PBS, LSF and SGE
batch_job    the job itself: its name, its time limit, how to requeue it
clouds       tasks of SkyPilot, dstack and Kubeflow
ansible      Ansible inventories
ssh_hosts    hosts in ssh_config
"""
