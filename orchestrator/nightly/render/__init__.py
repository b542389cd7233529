"""Nights, sweeps and repeats on the terminal."""
