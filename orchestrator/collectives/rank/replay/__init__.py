"""The replay of collectives with their gaps."""
