"""The process of a rank: start, environment, context, events, seeds and recorded files."""
