"""A data-parallel trainer that needs torch alone. Read train.py first. Nothing here depends on who started it.

train       a whole trainer in one file, to copy together with dist.py
loop        the loop of `python -m trainer`, with all features: setup, steps, evaluation, saving
config      the flags
place       which rank this process is, from the launcher's environment
dist        join the other ranks, choose gloo's network interface, exchange small messages, react to signals
data        which samples a step takes, and what a data set is
model       models by name: a small CNN, GPT, torchvision's, your own
parallel    share a model between the ranks: DDP or FSDP
optim       the optimizer and its learning rate
checkpoint  save and load snapshots
transfer    copy files between nodes
sharded     save and load snapshots of a sharded model
metrics     what a run prints and records

datasets/ has the data sets of --data. extras/ has what loop.py can do without.
"""
