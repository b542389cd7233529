"""What a host cannot read of its own files is told as missing, wherever it is fetched from; all else comes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.provider import Fetched
from orchestrator.node.hostlink.request_handler import RequestHandler
from orchestrator.providers import node_files
from orchestrator.providers.ssh import remote_host
from orchestrator.providers.ssh.remote_host import RemoteSite
from orchestrator.run import collect
from orchestrator.system import plain_files

from . import piped_site

RUN = "nodes/n0/runs/R"
CLOSED = "cannot.log"


@pytest.fixture
def hostdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with a file that it cannot read, and a directory that it cannot look into; also where this is root."""
    run = tmp_path / "host" / RUN
    (run / "closed").mkdir(parents=True)
    for name in ("i1-e0-can.log", CLOSED, "closed/inside.log"):
        (run / name).write_text(f"{name}\n")
    opened, scandir = plain_files.open_file, os.scandir

    def refused(path: object) -> OSError:
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def opening(path: str | Path) -> int:
        if str(path).endswith(CLOSED):
            raise refused(path)
        return opened(path)

    def scanning(path: Any = ".") -> Any:
        if str(path).endswith("closed"):
            raise refused(path)
        return scandir(path)

    monkeypatch.setattr(plain_files, "open_file", opening)
    monkeypatch.setattr(os, "scandir", scanning)
    return tmp_path / "host"


@pytest.fixture
def site(hostdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteSite]:
    with piped_site.site(hostdir, tmp_path / "mirror", monkeypatch) as made:
        made.open()
        yield made


def test_a_mirror_tells_what_its_host_cannot_read(site: RemoteSite, tmp_path: Path) -> None:
    site.watch("R", ["n0"])
    got = site.fetch("n0", "runs/R", tmp_path / "to", 1 << 20)
    assert (tmp_path / "to/i1-e0-can.log").read_text() == "i1-e0-can.log\n"
    assert got.reason == f"cannot be read there: {RUN}/{CLOSED}: Permission denied, {RUN}/closed: Permission denied"


def test_it_is_told_no_more_once_it_is_gone_or_can_be_read(
    site: RemoteSite, hostdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.watch("R", ["n0"])
    (hostdir / RUN / CLOSED).unlink()
    got = site.fetch("n0", "runs/R", tmp_path / "to", 1 << 20)
    assert CLOSED not in got.reason
    (hostdir / RUN / CLOSED).write_text("again\n")
    monkeypatch.undo()
    assert site.fetch("n0", "runs/R", tmp_path / "to", 1 << 20).reason == ""
    assert (tmp_path / "to" / CLOSED).read_text() == "again\n"


def test_the_bundle_lists_it_as_missing(site: RemoteSite, tmp_path: Path) -> None:
    site.watch("R", ["n0"])
    (tmp_path / "bundle").mkdir()
    summary = collect.gather(site, {"n0": (("runs/R", ""),)}, tmp_path / "bundle")
    assert [(entry["node"], entry["path"]) for entry in summary["missing"]] == [("n0", "runs/R")]
    assert f"{CLOSED}: Permission denied" in summary["missing"][0]["reason"]
    assert (tmp_path / "bundle/nodes/n0/i1-e0-can.log").exists()


def _local(hostdir: Path, to: Path) -> Fetched:
    return node_files.fetch([hostdir / "nodes/n0"], "runs/R", to, 1 << 20)


def _pulled(hostdir: Path, to: Path) -> Fetched:
    desk = RequestHandler(str(hostdir), [], {})
    return remote_host.pull(
        lambda request, body, _: desk.quick[request["do"]](request, body), f"{hostdir}/{RUN}", to, 1 << 20, 5.0
    )


@pytest.mark.parametrize("fetch", [_local, _pulled])
def test_one_that_cannot_be_read_keeps_no_other_away(
    fetch: Callable[[Path, Path], Fetched], hostdir: Path, tmp_path: Path
) -> None:
    got = fetch(hostdir, tmp_path / "to")
    assert CLOSED in got.reason and "closed: Permission denied" in got.reason
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["i1-e0-can.log"]


def test_only_the_first_few_are_named() -> None:
    assert node_files.summary(["a", "b", "c", "d", "e"]) == "a, b, c, and 2 more"
