"""Workloads: one file each. Their functions import torch, so that the orchestrator can read the files without it."""
