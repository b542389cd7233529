"""Measures collectives: cases, sizes, algorithms, link probe, memory, verification."""
