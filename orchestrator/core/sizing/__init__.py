"""What a training moves and holds, before it runs: bytes of every collective, trials, memory, time. Pure."""
