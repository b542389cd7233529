"""Programs of ranks that measure collectives."""
