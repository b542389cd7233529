"""Use cases of nights."""
