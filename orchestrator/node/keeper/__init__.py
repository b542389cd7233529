"""Holds the keeper, which runs on a host: it starts nodes, reports their exits, injects and heals faults, and holds leases."""
