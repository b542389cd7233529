"""Kinds of beds: each file implements model.provider.Provider."""
