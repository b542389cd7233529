"""The pure core: what the user wrote, what is to be done, and what follows from each event."""
