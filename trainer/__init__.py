"""A data-parallel trainer that needs torch alone. It knows nothing of who started it.

Read train.py first: it is the whole story. The others are one noun each: config.py (the flags), world.py (the ranks),
data.py, models.py, snapshot.py.
"""
