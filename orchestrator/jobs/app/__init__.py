"""Use cases of your own training jobs."""
