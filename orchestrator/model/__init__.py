"""The nouns: frozen dataclasses and nothing else. Standard library only; no effects."""
