"""The tables of the index. Everything in them is derived from bundles, and may be dropped.

Who changes a table, or what is stored in it, appends a revision: an index of an earlier one is made from the bundles again.
"""

from __future__ import annotations

import sqlalchemy as sa


def _id(name: str = "id") -> sa.Column[int]:
    """Numbers are assigned by the writer, who holds the lock, so that rows are inserted in bulk."""
    return sa.Column(name, sa.Integer, primary_key=True, autoincrement=False)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, default="")


def _root() -> sa.Column[int]:
    return sa.Column("root_id", sa.Integer, sa.ForeignKey("roots.id"), nullable=False)


metadata = sa.MetaData()

#: All revisions of the tables, this one last.
REVISIONS = ("r1", "r2", "r3", "r4", "r5")
#: The revision that a database has.
version = sa.Table("ccbed_index_version", metadata, sa.Column("version_num", sa.String(32), primary_key=True))

#: A directory of runs. One database serves several.
roots = sa.Table("roots", metadata, _id(), _text("host"), _text("path"), sa.UniqueConstraint("host", "path"))

#: ``directory``: relative to the root. ``number``: 0 for a casual night. ``started_s``: seconds since 1970, NULL where unreadable.
nights = sa.Table(
    "nights", metadata, _id(), _root(), _text("directory"), _text("name"), _text("bed"), _text("suite"),
    sa.Column("number", sa.BigInteger, nullable=False), _text("started"), sa.Column("started_s", sa.Float),
    sa.Column("is_closed", sa.Boolean, nullable=False), sa.Column("outcome", sa.Text), sa.Column("exit", sa.BigInteger),
    _text("sentence"), _text("signature"), sa.UniqueConstraint("root_id", "directory"),
    sa.Index("ix_nights_bed", "root_id", "bed", "number"),
)  # fmt: skip

#: Versions by node, once for all runs that have them.
suspects = sa.Table(
    "suspects", metadata, _id(), sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.Column("versions", sa.JSON, nullable=False),
)  # fmt: skip

#: ``night``: the directory of its night. ``cell``: empty unless a row of the night names the run; ``again``: of a second measurement.
#: ``notes``: what was left out.
runs = sa.Table(
    "runs", metadata, _id(), _root(), _text("directory"), _text("run"), _text("bed"), _text("trial"), _text("workload"),
    _text("started"), sa.Column("started_s", sa.Float), _text("outcome"), sa.Column("is_sealed", sa.Boolean, nullable=False),
    sa.Column("exit", sa.BigInteger), sa.Column("duration_s", sa.Float), sa.Column("ttr_s", sa.Float), _text("night"), _text("cell"),
    sa.Column("repeat", sa.BigInteger, nullable=False), sa.Column("again", sa.Boolean, nullable=False),
    sa.Column("suspects_id", sa.Integer, sa.ForeignKey("suspects.id")),
    _text("signature"), sa.Column("notes", sa.JSON, nullable=False, server_default="[]"),
    sa.UniqueConstraint("root_id", "directory"), sa.Index("ix_runs_started", "root_id", "started_s"),
    sa.Index("ix_runs_night", "root_id", "night"), sa.Index("ix_runs_trial", "root_id", "trial"),
)  # fmt: skip

#: A metric of a node, with its comparability key.
series = sa.Table(
    "series", metadata, _id(), _text("node"), _text("metric"), _text("unit"), _text("better"), sa.Column("ceiling", sa.Float),
    _text("hardware"), _text("workload"), _text("parameters"), sa.Index("ix_series_metric", "metric"),
)  # fmt: skip

#: ``values``: of the repeats within a run, numbers that are not finite as text. ``median``: of the finite ones.
measurements = sa.Table(
    "measurements", metadata,
    sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), nullable=False),
    sa.Column("series_id", sa.ForeignKey("series.id"), nullable=False),
    sa.Column("values", sa.JSON, nullable=False), sa.Column("median", sa.Float),
    sa.PrimaryKeyConstraint("run_id", "series_id"), sa.Index("ix_measurements_series", "series_id", "run_id"),
)  # fmt: skip

#: Directories that look like runs or nights and cannot be read.
skipped = sa.Table(
    "skipped", metadata, _root(), _text("directory"), _text("signature"), _text("reason"),
    sa.PrimaryKeyConstraint("root_id", "directory"),
)  # fmt: skip
