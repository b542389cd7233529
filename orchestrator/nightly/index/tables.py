"""The tables of the index. Everything in them is derived from bundles, and may be dropped."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)


def _id(name: str = "id") -> Column[int]:
    """Numbers are assigned by the writer, who holds the lock, so that rows are inserted in bulk."""
    return Column(name, Integer, primary_key=True, autoincrement=False)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False, default="")


def _root() -> Column[int]:
    return Column("root_id", Integer, ForeignKey("roots.id"), nullable=False)


metadata = MetaData()

#: A directory of runs. One database serves several.
roots = Table("roots", metadata, _id(), _text("host"), _text("path"), UniqueConstraint("host", "path"))

#: ``directory``: relative to the root. ``number``: 0 for a casual night. ``started_s``: seconds since 1970, NULL where unreadable.
nights = Table(
    "nights", metadata, _id(), _root(), _text("directory"), _text("name"), _text("bed"), _text("suite"),
    Column("number", BigInteger, nullable=False), _text("started"), Column("started_s", Float),
    Column("is_closed", Boolean, nullable=False), Column("outcome", Text), Column("exit", BigInteger), _text("sentence"),
    _text("signature"), UniqueConstraint("root_id", "directory"), Index("ix_nights_bed", "root_id", "bed", "number"),
)  # fmt: skip

#: Versions by node, once for all runs that have them.
suspects = Table(
    "suspects", metadata, _id(), Column("digest", Text, nullable=False, unique=True),
    Column("versions", JSON, nullable=False),
)  # fmt: skip

#: ``night``: the directory of its night. ``cell``: empty unless a row of the night names the run. ``notes``: what was left out.
runs = Table(
    "runs", metadata, _id(), _root(), _text("directory"), _text("run"), _text("bed"), _text("trial"), _text("workload"),
    _text("started"), Column("started_s", Float), _text("outcome"), Column("is_sealed", Boolean, nullable=False),
    Column("exit", BigInteger), Column("duration_s", Float), Column("ttr_s", Float), _text("night"), _text("cell"),
    Column("repeat", BigInteger, nullable=False), Column("suspects_id", Integer, ForeignKey("suspects.id")), _text("signature"),
    Column("notes", JSON, nullable=False, server_default="[]"),
    UniqueConstraint("root_id", "directory"), Index("ix_runs_started", "root_id", "started_s"),
    Index("ix_runs_night", "root_id", "night"), Index("ix_runs_trial", "root_id", "trial"),
)  # fmt: skip

#: A metric of a node, with its comparability key.
series = Table(
    "series", metadata, _id(), _text("node"), _text("metric"), _text("unit"), _text("better"), Column("ceiling", Float),
    _text("hardware"), _text("workload"), _text("parameters"), Index("ix_series_metric", "metric"),
)  # fmt: skip

#: ``values``: of the repeats within a run, numbers that are not finite as text. ``median``: of the finite ones.
measurements = Table(
    "measurements", metadata,
    Column("run_id", Integer, ForeignKey("runs.id"), nullable=False), Column("series_id", ForeignKey("series.id"), nullable=False),
    Column("values", JSON, nullable=False), Column("median", Float),
    PrimaryKeyConstraint("run_id", "series_id"), Index("ix_measurements_series", "series_id", "run_id"),
)  # fmt: skip

#: Directories that look like runs or nights and cannot be read.
skipped = Table(
    "skipped", metadata, _root(), _text("directory"), _text("signature"), _text("reason"),
    PrimaryKeyConstraint("root_id", "directory"),
)  # fmt: skip
