"""Trial specification: parsing, defaults, faults, requirements, and the plan of a run."""
