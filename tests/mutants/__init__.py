"""Mutations of the product, and the tests that notice them: ``make mutants``."""
