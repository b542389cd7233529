"""Beds whose nodes run in a job of Slurm."""
