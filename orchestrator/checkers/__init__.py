"""Checkers: one file each; pure, total on every prefix of a history, three-valued."""
