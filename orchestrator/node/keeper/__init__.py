"""On a host: the keeper that starts nodes, reports their exits, injects and heals faults, and holds leases."""
