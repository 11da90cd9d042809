"""Runs in the user's python. Nothing else is in this folder: it is at the head of PYTHONPATH there.

sitecustomize  imports the modules of `run.preload` once, and forks a rank on request
"""
