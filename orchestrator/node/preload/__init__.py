"""Runs in the user's python, with `run.preload`. This folder is at the head of PYTHONPATH while that python starts.

sitecustomize   the hook: python imports it, and so becomes the preloader
forker          imports the modules of `run.preload` once, and forks a rank on request
imports         what modules may do when they are imported
extension       imports what the script imports, before a restart needs it
script_modules  finds what that is
later_runs      what it needs to serve another run, with `run.warm`
memory          what others see of the process: arguments, name, mark
"""
