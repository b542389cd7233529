"""A bed of many hosts raises this process's limit of open files, or is refused with the number that it needs."""

from __future__ import annotations

import resource

import pytest

from orchestrator.model.errors import InfrastructureError
from orchestrator.slurm.reverse_link import listener


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limits of this process: the last element."""
    values = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: values[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: values.append(limit))
    return values


def test_a_soft_limit_that_is_too_low_is_raised(limits: list[tuple[int, int]]) -> None:
    listener.allow_open_files(1024)
    assert limits[1:] == [(2304, 4096)]


def test_a_limit_that_is_enough_is_left(limits: list[tuple[int, int]]) -> None:
    listener.allow_open_files(64)
    limits[0] = (1024, resource.RLIM_INFINITY)
    listener.allow_open_files(64)
    assert len(limits) == 1


def test_more_hosts_than_the_hard_limit_allows_are_refused(limits: list[tuple[int, int]]) -> None:
    with pytest.raises(
        InfrastructureError, match="may open 4096 files, and the connections to 2000 hosts need 4256"
    ) as error:
        listener.allow_open_files(2000)
    assert "ulimit -Hn" in str(error.value.hint)
    assert len(limits) == 1
