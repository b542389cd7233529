"""Runs collectives over the process group: by schedules of algorithms or by the backend's calls."""
