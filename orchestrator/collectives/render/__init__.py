"""Measurements and sizes on the terminal."""
