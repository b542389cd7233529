"""Verdicts on measurements of collectives."""
