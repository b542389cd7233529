"""Beds: nodes and resources assembled from an inventory, differences, status and diagnosis."""
