"""Judge facts: what hosts answered becomes findings. Pure."""
