"""`ccbed init` writes files that work and never overwrites one; `ccbed list inventories` knows them."""

from __future__ import annotations

import json
import os
import re
import stat

import pytest

from orchestrator import plugins
from orchestrator.app import starters
from orchestrator.core.spec import parse_trial
from orchestrator.store import shipped

from .test_cli import Desk, ccbed

__all__ = ["ccbed"]
CATALOGUE = plugins.discover()
INVENTORIES = [path.name.partition(".")[0] for path in shipped.inventory_files(shipped.folder("inventories"))]


@pytest.mark.parametrize("name", INVENTORIES)
def test_every_starter_of_an_inventory_is_read_as_the_shipped_one(ccbed: Desk, name: str) -> None:
    assert ccbed("init", "inventory", "mine.yml", "--like", name) == 0
    assert "next: ccbed up mine.yml" in ccbed.out
    text = (ccbed.root / "mine.yml").read_text()
    kept = next(
        path for path in shipped.inventory_files(shipped.folder("inventories")) if path.name.startswith(f"{name}.")
    )
    assert text.startswith(kept.read_text().rstrip())
    assert all(line.startswith("#") for line in text.removeprefix(kept.read_text().rstrip()).splitlines() if line)
    assert "# ccbed_data_dir" in text or "ccbed_data_dir:" in text


@pytest.mark.parametrize("trial", ["dp-ring", "allreduce", "ddp", "gemm", "seed-dp-stopped", "tp-ring"])
def test_a_starter_of_a_trial_can_be_run(ccbed: Desk, trial: str) -> None:
    ccbed("up", "local.yml")
    assert ccbed("init", "trial", "drill.yml", "--like", trial) == 0
    assert ccbed("run", "drill.yml", "--dry-run", "--json") == 0, ccbed.err
    assert json.loads(ccbed.out)["trial"]["name"] == "drill"


@pytest.mark.parametrize("like", list(CATALOGUE.trials))
@pytest.mark.parametrize("fault", list(CATALOGUE.faults))
def test_every_fault_is_added_with_its_parameters(like: str, fault: str) -> None:
    text = starters.trial(CATALOGUE, like, "drill", [fault])
    trial = parse_trial.build(parse_trial.open_document(text, "drill.yml"), CATALOGUE, [], None)
    before = parse_trial.build(
        parse_trial.open_document(starters.trial(CATALOGUE, like, "drill", []), ""), CATALOGUE, [], None
    )
    assert [item.fault for item in trial.faults] == [fault, *(item.fault for item in before.faults)]


def test_the_settings_are_read_with_and_without_their_comments(ccbed: Desk) -> None:
    assert ccbed("config", "show") == 0 and "no settings     write some: ccbed init config\n" in ccbed.out
    assert ccbed("init", "config") == 0
    assert ccbed("config", "show") == 0 and "no settings     remove the # before a line of the file\n" in ccbed.out
    file = ccbed.root / "ccbed.toml"
    lines = [
        line.removeprefix("# ") if "=" in line or line.startswith("# [") else line
        for line in file.read_text().splitlines()
    ]
    file.write_text("\n".join(lines))
    assert ccbed("config", "show") == 0, ccbed.err
    assert "run.wall" in ccbed.out and "image.build.kind" in ccbed.out


def test_a_file_that_exists_stays_as_it_is(ccbed: Desk) -> None:
    before = (ccbed.root / "local.yml").read_text()
    assert ccbed("init", "inventory", "local.yml") == 3
    assert ccbed.err == "error: local.yml: exists, and stays as it is\nnext: give another FILE\n"
    assert (ccbed.root / "local.yml").read_text() == before
    (ccbed.root / "away.yml").symlink_to(ccbed.root / "nowhere.yml")
    assert ccbed("init", "inventory", "away.yml") == 3
    assert not (ccbed.root / "nowhere.yml").exists()


def test_a_written_file_has_the_rights_that_the_user_gives_files(ccbed: Desk) -> None:
    before = os.umask(0o027)
    try:
        assert ccbed("init") == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((ccbed.root / "my-bed.yml").stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ("init trail", "did you mean trial?"),
        ("init inventory a.yml --like slrum", "no inventory slrum; did you mean slurm?"),
        ("init trial a.yml --like dp-rng", "no trial dp-rng; did you mean dp-ring?"),
        ("init trial a.yml --fault slow-nod", "no fault slow-nod; did you mean slow-node?"),
        ("init inventory --fault slow-node", "--fault needs a trial"),
        ("init inventory no/where.yml", "no/where.yml: cannot be written: No such file or directory"),
    ],
)
def test_a_wrong_name_writes_nothing(ccbed: Desk, args: str, text: str) -> None:
    before = sorted(ccbed.root.iterdir())
    assert ccbed(*args.split()) == 3 and text in ccbed.err
    assert [path for path in ccbed.root.iterdir() if path not in before] == []


def test_inventories_are_listed_with_their_origin_and_whether_they_are_up(ccbed: Desk) -> None:
    (ccbed.root / "inventories").mkdir()
    (ccbed.root / "local.yml").rename(ccbed.root / "inventories" / "mine.yml")
    ccbed("up", "inventories/mine.yml")
    assert ccbed("list", "inventories", "--json") == 0
    rows = {row["inventory"]: (row["state"], row["from"]) for row in json.loads(ccbed.out)}
    assert rows["inventories/mine.yml"] == ("up", "here")
    assert rows["inventories/docker.yml"] == ("-", "shipped")
    texts = [row["about"] for row in json.loads(ccbed.out) if row["from"] == "shipped"]
    assert texts and not [text for text in texts if re.search(r"(?:[:,;]|\b(?:then|network namespace))$", text)], (
        "cut off"
    )
