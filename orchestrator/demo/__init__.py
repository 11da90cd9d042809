"""Two hosts on this machine with an embedded SSH server, and a training run on them."""
