"""Nodes that nights accuse: their evidence, the call of a command, and quarantine."""
