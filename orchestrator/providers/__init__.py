"""Beds: what exists, what is done to it, and what it says. One file per provider."""
