"""Links that hosts open to the orchestrator over TLS: the certificate and tokens of a bed, the listener, its connections."""
