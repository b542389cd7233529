"""Nodes as process groups on this machine."""
