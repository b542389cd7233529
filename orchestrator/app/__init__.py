"""Use cases: each is a function from a request to a result. Nothing here knows a command line or a terminal."""
