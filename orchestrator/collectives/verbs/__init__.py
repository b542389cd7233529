"""Verbs for collectives."""
