"""Holds what runs inside a rank: environment, context, exchange, checkpoints, data, records. Has effects; uses torch."""
