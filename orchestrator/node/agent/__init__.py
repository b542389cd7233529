"""Inside a node: the agent that forks ranks and answers commands."""
