"""From the command line to values: sessions, beds, trials, options, sizes, prepared hosts."""
