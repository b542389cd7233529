"""Verbs for nights, sweeps and lists of runs."""
