"""Talk to the node program on many hosts. The failure of some hosts is a result."""
