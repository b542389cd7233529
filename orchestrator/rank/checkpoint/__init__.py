"""Checkpoints: contents, digests, commits, and files of one or all ranks."""
