"""The package ``ccbed``: the pytest plugin. It imports ``orchestrator``, beside which it is installed, only when it is used."""
