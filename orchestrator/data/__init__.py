"""Data that is shipped, and the scripts that made it."""
