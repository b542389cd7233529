"""For all tests: a container engine, an image, a lab of hosts with its user, and a Slurm, started by the first test that asks."""

from __future__ import annotations

pytest_plugins = ("tests.lab.engine", "tests.lab.desk", "tests.lab.slurm")
