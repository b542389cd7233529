"""Holds what the reports share: figures, charts and tables as values, and the template of the page."""
