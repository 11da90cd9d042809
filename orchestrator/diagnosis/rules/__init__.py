"""Rules that rewrite suspects, by theme; refine.py says in which order they run. Pure.

Each is a function `(suspects, scene) -> suspects`. Its docstring says which case it serves and why it stands where it
stands; tests/unit/test_rules.py has that case.
"""
