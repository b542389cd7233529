"""From the command line to values: beds, trials, options and prefetching."""
