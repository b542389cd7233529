"""The reference workloads: small models whose results are known exactly."""
