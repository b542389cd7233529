"""The measurement of collectives: cases, algorithms, sizes, probes and verification."""
