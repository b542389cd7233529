"""Stops this process at a point of a planned fault until the fault has acted, and acts inside of it on order."""
