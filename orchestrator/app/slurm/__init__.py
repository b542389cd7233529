"""Use cases of beds whose nodes run in a job of Slurm."""
