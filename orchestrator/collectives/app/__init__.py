"""Use cases of collectives: sweeps."""
