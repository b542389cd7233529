"""Reference models and their training: small, and with results that can be compared exactly."""
