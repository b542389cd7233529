"""Algorithms of collectives: one file each, a pure schedule of sends, receives and reductions."""
