"""Lives as long as an SSH session."""
