"""The life of one rank: environment, context, events, seeds and files."""
