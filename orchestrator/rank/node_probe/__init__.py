"""Probes a node's hardware: what probes yield, how repeats are timed, whose turn it is, what the hardware can do at best."""
