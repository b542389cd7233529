"""Keeper and agent: what runs on a node's host between the orchestrator and the ranks. Standard library, model and system only."""
