"""Use cases of a project: the files that it begins with, and its settings."""
