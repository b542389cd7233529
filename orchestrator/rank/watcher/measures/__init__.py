"""Measures each step: its batches, its losses, its time."""
