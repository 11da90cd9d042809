"""What train.py can do without: delete what you do not need.

bench        measure computing, data and all-reduce alone and together (--bench)
compression  send gradients with fewer bytes (--compress)
local_sgd    average models now and then instead of gradients in every step (--local-sgd)
"""
