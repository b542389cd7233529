"""Holds the agent, which runs inside a node: it forks ranks and answers commands."""
