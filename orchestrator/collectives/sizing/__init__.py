"""Sizing: the collectives, batches, memory and time of a training, before it runs; and traces as items to replay."""
