"""For all tests: a container engine, an image, and a lab of hosts, started by the first test that asks."""

from __future__ import annotations

pytest_plugins = ("tests.lab.engine",)
