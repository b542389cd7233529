"""Collectives by schedule: buffers, messages and communicators over the process group."""
