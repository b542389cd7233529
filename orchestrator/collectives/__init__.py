"""Collectives measured against the wire: measurements, sweeps, replays of traffic, sizes of trainings."""
