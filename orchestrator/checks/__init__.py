"""Judge facts: what hosts answered becomes findings. Pure.

hosts          where the checks start: one host by itself, then hosts compared with each other
python         the python of a host, torch and the versions of both
containers     the engine and the image of a container
engine_advice  the command lines that help with each container engine
gpus           GPUs, drivers, and who uses them
network        interfaces, names, ports
reliability    hosts that have failed in more runs than the others
auto_env       the environment variables that are chosen for the user
findings       collects findings

What needs the network between hosts is measured in runs/mesh.py and judged in runs/reach.py.
"""
