"""The formats of traces: each reader makes recordings, and matching makes one sequence of those of all ranks."""
