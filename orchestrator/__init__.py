"""ccbed: a containerized cluster test-bed that injects faults into nodes and verifies that training recovers."""

__version__ = "0.1.0"
