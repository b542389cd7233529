"""What a trial asks for: parsing, defaults, faults, requirements, and the sealed plan."""
