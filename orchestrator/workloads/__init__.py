"""Workloads: one file each. torch is imported inside their functions, so that the orchestrator can read them without it."""
