"""The pytest plugin of ccbed: ``ccbed_bed``, a bed for the session, and ``ccbed_run``, which runs a trial on it.

    def test_training_survives_a_lost_node(ccbed_run):
        ccbed_run("dp-ring", fail_node=2)

pytest loads this file in every project of an environment with ccbed: it imports ``orchestrator`` only when a fixture is used.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from orchestrator import api


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    # pytest rewrites the asserts of all packages of a plugin's wheel; rewriting those of orchestrator only costs time.
    getattr(pluginmanager.rewrite_hook, "_must_rewrite", set()).discard("orchestrator")
    group = parser.getgroup("ccbed", "ccbed: a cluster test-bed that injects faults")
    group.addoption("--ccbed-inventory", metavar="FILE", help="The inventory of ccbed_bed.")
    parser.addini("ccbed_inventory", "The inventory of ccbed_bed, unless --ccbed-inventory names one.", default="")
    parser.addini("ccbed_runs", "The directory of the bundles of ccbed_run, below the rootdir.", default="runs")


@pytest.fixture(scope="session")
def ccbed_bed(pytestconfig: pytest.Config) -> Iterator[api.Bed]:
    """The bed of ``--ccbed-inventory`` or of the ini option ``ccbed_inventory``; an ``orchestrator.api.Bed``.

    It is taken down when the last pytest that uses it ends, such as the workers of pytest-xdist, unless it was up before.
    """
    from orchestrator import api
    from orchestrator.app import session

    inventory = _inventory(pytestconfig)
    state = session.state_dir()
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(state):
        bed = api.Bed.up(inventory)
        users = (state / f"pytest-{bed.name}.users").open("a+")
        if _is_last(users):
            users.truncate(0)
            users.write("" if bed.was_up else "down")
            users.flush()
        fcntl.flock(users, fcntl.LOCK_SH)
    try:
        yield bed
    finally:
        with users, _locked(state):
            users.seek(0)
            if _is_last(users) and users.read():
                bed.down(force=True)


@pytest.fixture
def ccbed_run(
    ccbed_bed: api.Bed, pytestconfig: pytest.Config, request: pytest.FixtureRequest
) -> Callable[..., api.Result]:
    """Run a trial on ``ccbed_bed``: its name, its path, or a dict; options as of ``orchestrator.api.run``.

    A failed verdict raises ``FailedError``, an unknown one ``UnknownError``: neither passes the test. A broken bed raises
    ``InfrastructureError``, a wrong trial ``UsageError``. Ctrl-C ends the session. The properties ``ccbed_exit``,
    ``ccbed_bundle`` and ``ccbed_page`` of the test are in the JUnit file.
    """
    from orchestrator import api
    from orchestrator.app import session

    def run(trial: api.Trial, **options: Any) -> api.Result:
        __tracebackhide__ = True
        options.setdefault("runs", pytestconfig.rootpath / pytestconfig.getini("ccbed_runs"))
        try:
            with _locked(session.state_dir()):
                result = api.run(trial, bed=ccbed_bed, **options)
        except api.Interrupted as error:
            pytest.exit(str(error), returncode=error.exit_code)
        values = {"exit": result.exit_code, "bundle": result.bundle, "page": result.page}
        # record_property would warn of the family xunit2, which is pytest's default
        request.node.user_properties += [
            (f"ccbed_{name}", str(value)) for name, value in values.items() if value is not None
        ]
        return result.require_pass()

    return run


def _inventory(config: pytest.Config) -> Path:
    """Raises UsageError if none is named."""
    option, ini = config.getoption("--ccbed-inventory"), config.getini("ccbed_inventory")
    if option:
        return (
            config.invocation_params.dir / option if (config.invocation_params.dir / option).exists() else Path(option)
        )
    if ini:
        return config.rootpath / ini if (config.rootpath / ini).exists() else Path(ini)
    from orchestrator import api

    raise api.UsageError(
        "ccbed_bed: no inventory is named; name one by --ccbed-inventory FILE, or by ccbed_inventory in pytest's ini file"
    )


@contextmanager
def _locked(state: Path) -> Iterator[None]:
    """Runs, ups and downs of all pytest processes of this user come one after the other: a bed holds one run."""
    with (state / "pytest.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_last(users: IO[str]) -> bool:
    """Return whether no other process holds the file. This one then holds it alone."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
