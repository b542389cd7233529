"""Faults: one file each; what is to be done to a node, with its proof and its rollback. Pure."""
