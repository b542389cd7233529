"""Reports: one file each, from a run to the files that people and machines read."""
