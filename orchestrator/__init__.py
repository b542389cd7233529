"""ccbed: a containerized cluster test-bed that breaks nodes on purpose and proves that training came back."""

__version__ = "0.1.0"
