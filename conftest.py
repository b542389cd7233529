"""For all tests: a container engine, an image, a lab of hosts with its user, and a Slurm, started by the first test that asks."""

from __future__ import annotations

import signal

import hypothesis

# No example fails because the machine is busy.
hypothesis.settings.register_profile("no deadline", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("no deadline")

# A shell ignores Ctrl-C in what it starts in the background, and so would every program that the tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ("tests.lab.engine", "tests.lab.desk", "tests.lab.slurm")
