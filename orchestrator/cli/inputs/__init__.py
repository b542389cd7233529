"""Turns the command line into values: sessions, beds, trials, options, sizes, prepared hosts."""
