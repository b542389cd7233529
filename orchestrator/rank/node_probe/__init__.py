"""How a node's hardware is probed: what probes yield, how repeats are timed, whose turn it is, what the hardware can do at best."""
