"""On a host: the keeper that starts nodes, sees them exit, injects faults and holds leases."""
