"""Act on runs: probe, launch, follow, diagnose."""
