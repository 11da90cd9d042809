import jax
from jax.experimental import multihost_utils

jax.distributed.initialize()
total = multihost_utils.process_allgather(jax.numpy.ones(())).sum()
print("done", jax.process_index(), "of", int(total))
