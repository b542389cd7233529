"""What the terminal shows: bed, live run, summary and tables."""
