"""A fake provider for tests of the engine and of plugins: no processes, no clock."""
