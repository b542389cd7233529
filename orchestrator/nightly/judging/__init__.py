"""The judgement of a night: its figures through the gates, its rows, its floors; outcome and exit code."""

from .night import judge

__all__ = ["judge"]
