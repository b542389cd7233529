"""Beds: hosts of an inventory become nodes; the differences to existing nodes, their status, and diagnosis of hosts."""
