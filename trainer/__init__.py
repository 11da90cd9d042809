"""A data-parallel trainer that needs torch alone. Read train.py first. Nothing here depends on who started it.

config      the flags
place       which rank this process is, from the launcher's environment
dist        join the other ranks, exchange small messages, react to signals
interfaces  which network interface gloo uses
data        which samples a step takes, and what a data set is
model       models by name: a small CNN, GPT, torchvision's, your own
parallel    share a model between the ranks: DDP or FSDP
optim       the optimizer and its learning rate
checkpoint  save and load snapshots
transfer    copy files between nodes
sharded     save and load snapshots of a sharded model
metrics     what a run prints and records
train       setup, training loop, evaluation: the whole story

datasets/ has the data sets of --data. extras/ has what train.py can do without.
"""
