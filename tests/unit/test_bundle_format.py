"""The format of a bundle: an unknown one is rejected, the first one is judged by its own rules and labelled."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.main import run
from orchestrator.cli.render.terminal import Terminal
from orchestrator.run import judging
from orchestrator.store import bundle, paths, seal, unpack
from orchestrator.views import NOT_COMPARED

from .catalogue import CATALOGUE

BUNDLES = Path(__file__).parents[1] / "golden" / "bundles"


@pytest.fixture(params=["failover", "collective"])
def directory(request: pytest.FixtureRequest) -> Iterator[Path]:
    with unpack.unpacked(BUNDLES / f"format-1-{request.param}.tar.gz") as unpacked:
        yield unpacked


def check(directory: Path, *options: str) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    session = Session(state=directory.parent / "state", terminal=Terminal(out=out, err=io.StringIO()))
    code = run(["check", str(directory), "--json", *options], session)
    return code, json.loads(out.getvalue())


def test_a_bundle_of_format_1_keeps_its_verdicts_and_is_unknown_at_most(directory: Path) -> None:
    before = json.loads((directory / "verdicts.json").read_bytes())
    code, document = check(directory)
    assert (code, document["note"]) == (2, NOT_COMPARED)
    now = {v["check"]: v["outcome"] for v in document["verdicts"]}
    unknown = {"evidence-agrees": "unknown", "history-replays": "unknown"}
    assert now == {v["check"]: v["outcome"] for v in before} | unknown
    assert NOT_COMPARED in (directory / "report/summary.md").read_text()


@pytest.mark.parametrize("number", [0, 3, "2", True, None, 2.5, [1]])
def test_an_unknown_format_is_rejected_with_its_place(directory: Path, number: object) -> None:
    file = directory / bundle.BUNDLE
    file.write_text(json.dumps({**json.loads(file.read_bytes()), "format": number}))
    seal.seal(directory)
    with pytest.raises(paths.TornBundleError, match=r"bundle\.json: format: unknown format") as error:
        judging.conclude(CATALOGUE, directory)
    assert error.value.exit_code == 2
