"""What is measured of each step: its batches, its losses, its time."""
