"""The output on the terminal: beds, live runs, summaries, tables, sizes."""
