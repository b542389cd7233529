"""Files that programs read of measurements of collectives."""
