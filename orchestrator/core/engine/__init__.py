"""The engine: pure decisions from the events of a history to the next commands."""
