"""Faults, one file each: what is done to a node, how it is verified, and how it is undone. Pure."""
