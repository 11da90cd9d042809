"""Scripts that run on the hosts with the host's torch, as a user's script would. Imported by nothing here.

deep  what `check --deep` runs on every rank
"""
