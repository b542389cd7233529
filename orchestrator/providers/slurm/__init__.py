"""Beds on a Slurm cluster: each host of a bed is a node of one job's allocation."""
