"""A data-parallel trainer that needs torch alone. It knows nothing of who started it.

Read train.py first: it is the whole story. The others are one noun each: config.py (the flags), place.py and world.py
(the ranks), prepare.py (what comes before the first step), sampling.py (which samples), samples.py (what they are),
data.py, tokens.py, folder.py and cifar10.py (from where), models.py and gpt.py, parallel.py (what the ranks send each
other), snapshot.py, requests.py (signals), telling.py, timing.py and tracking.py (the log), bench.py.
"""
