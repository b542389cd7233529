"""Verbs for your own training jobs."""
