"""For all tests: a container engine, an image, a lab of hosts with its user, and a Slurm, started by the first test that asks."""

from __future__ import annotations

import signal

import hypothesis

# No example fails because the machine is busy.
hypothesis.settings.register_profile("no deadline", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("no deadline")

# A shell ignores these signals in what it starts in the background, and so would every program that the tests start.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)

pytest_plugins = ("tests.lab.engine", "tests.lab.desk", "tests.lab.slurm")
