"""A directory of runs and recorded nights, written by hand: what the index is filled from."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from orchestrator.model import codec
from orchestrator.nightly import night_files
from orchestrator.nightly.night_judgement import NightJudgement
from orchestrator.nightly.records import Key, Metric
from orchestrator.nightly.run_record import Measurement, RunRecord
from orchestrator.nightly.suite import Cell, Night, Row, Suite
from orchestrator.store import bundle, paths, seal

RATE = Metric(name="copy rate", unit="GB/s", better="higher", ceiling=100.0)
KEY = Key(hardware="h100", workload="node-probe", parameters="dtype=float32")
SUSPECTS = {"n0": {"driver": "580.159", "torch": "2.13"}, "n1": {"driver": "580.170", "torch": "2.13"}}


def read(directory: Path) -> RunRecord:
    """The reader of these bundles: the record lies in ``record.json``, with numbers that JSON lacks as Python writes them."""
    try:
        document = json.loads((directory / "record.json").read_bytes())
    except (OSError, ValueError) as error:
        raise paths.TornBundleError(f"{directory / 'record.json'}: damaged: {type(error).__name__}") from None
    return replace(msgspec.convert(document, RunRecord, strict=False), is_sealed=bundle.is_sealed(directory))


def measurement(values: tuple[float, ...], node: str = "n0", metric: Metric = RATE, key: Key = KEY) -> Measurement:
    return Measurement(node=node, metric=metric, key=key, values=values)


@dataclass
class Archive:
    """Writes runs and nights below ``directory``."""

    directory: Path
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def run(
        self, *measurements: Measurement, trial: str = "copy", started: str = "2026-11-23T02:00:07Z", outcome: str = "pass",
        bed: str = "lab", below: str = "", sealed: bool = True, suspects: Mapping[str, Mapping[str, str]] = SUSPECTS,
        ttr_s: float | None = None,
    ) -> Path:  # fmt: skip
        token = f"{next(self.numbers):04x}"
        name = f"{started[:19].replace(':', '-')}Z-{trial}-{token}"
        directory = self.directory / below / name
        record = RunRecord(
            run=name, directory=str(directory), bed=bed, trial=trial, workload="node-probe", started=started,
            outcome=outcome, is_sealed=sealed, exit=0, duration_s=12.5, ttr_s=ttr_s, measurements=measurements,
            suspects=suspects,
        )  # fmt: skip
        directory.mkdir(parents=True)
        (directory / bundle.TRIAL).write_text("{}")
        (directory / bundle.HISTORY).write_text("{}\n")
        self.write(directory, record)
        if sealed:
            (directory / seal.MANIFEST).write_text("")
        return directory

    @staticmethod
    def write(directory: Path, record: RunRecord) -> None:
        """A file that is replaced changes the directory's time of modification."""
        target = directory / ".record.json"
        target.write_text(json.dumps(codec.plain(record)))
        target.rename(directory / "record.json")

    def night(self, number: int, *, bed: str = "lab", started: str = "", suite: str = "quick") -> Path:
        """A night that is not closed yet; ``number`` 0 is a casual one."""
        moment = started or f"2026-11-{max(number, 1):02d}T02:00:00Z"
        name = f"{moment[:19].replace(':', '-')}Z-night-{suite}-{next(self.numbers):04x}"
        directory = self.directory / name
        night = Night(
            name=name, suite=Suite(name=suite, cells=(Cell(name="copy[dtype=float32]", trial="copy", repeats=2),), text="x"),
            bed=bed, provider="process", hosts={"n0": "h0"}, number=number, started=moment, order=("copy[dtype=float32]",),
            command="ccbed nightly quick", ccbed="0.1.0",
        )  # fmt: skip
        self.directory.mkdir(parents=True, exist_ok=True)
        night_files.write_night(directory, night)
        return directory

    def repeat(
        self, night: Path, *measurements: Measurement, cell: str = "copy[dtype=float32]", repeat: int = 0, bed: str = "lab",
        sealed: bool = True, trial: str = "copy", again: str = "",
    ) -> Path:  # fmt: skip
        """A run of a night, with its row."""
        run = self.run(*measurements, below=f"{night.name}/runs", bed=bed, sealed=sealed, trial=trial)
        with night_files.Journal(night) as journal:
            journal.append(Row(cell=cell, repeat=repeat, state="passed", run=run.name, exit=0, again=again))
        return run

    def recorded_night(self, number: int, *values: float | None, bed: str = "lab", started: str = "") -> Path:
        """A closed night with a repeat for each value, of both nodes; n1 is slower by 1. None: no value was measured."""
        night = self.night(number, bed=bed, started=started)
        for repeat, value in enumerate(values):
            own, other = ((), ()) if value is None else ((value,), (value - 1.0,))
            self.repeat(night, measurement(own), measurement(other, "n1"), repeat=repeat, bed=bed)
        night_files.close(night)
        night_files.write_judgement(night, NightJudgement(outcome="pass", exit=0, sentence="2 of 2 cells pass."))
        return night
