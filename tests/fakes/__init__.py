"""A fake bed for tests of the engine and of plugins: no processes, no real time."""
