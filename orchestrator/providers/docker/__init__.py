"""Nodes as containers of Docker engines, here or over SSH."""
