"""One module per command: parse the request, call, print."""
