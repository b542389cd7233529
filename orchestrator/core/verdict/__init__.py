"""Verdicts: checks applied to a bundle, metrics, the twin and the replay of a history."""
