"""For all tests: a container engine, an image, a lab of hosts with its user, and a Slurm, started by the first test that asks."""

from __future__ import annotations

import hypothesis

# No example fails because the machine is busy.
hypothesis.settings.register_profile("no deadline", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("no deadline")

pytest_plugins = (
    "tests.durations",
    "tests.workers",
    "tests.circles",
    "tests.session_end",
    "tests.lab.engine",
    "tests.lab.desk",
    "tests.lab.slurm",
)
