"""Lives as long as the run. Never imports `serve`."""
