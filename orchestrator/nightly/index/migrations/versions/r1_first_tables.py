"""Tables of nights, runs, measurements, versions, and of directories that cannot be read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r1"
down_revision = None


def upgrade() -> None:
    op.create_table("roots", _id(), _text("host"), _text("path"), sa.UniqueConstraint("host", "path"))
    op.create_table(
        "nights", _id(), _root(), _text("directory"), _text("name"), _text("bed"), _text("suite"),
        sa.Column("number", sa.BigInteger, nullable=False), _text("started"), sa.Column("started_s", sa.Float),
        sa.Column("is_closed", sa.Boolean, nullable=False), sa.Column("outcome", sa.Text), sa.Column("exit", sa.BigInteger),
        _text("sentence"), _text("signature"), sa.UniqueConstraint("root_id", "directory"),
    )  # fmt: skip
    op.create_table(
        "suspects", _id(), sa.Column("digest", sa.Text, nullable=False, unique=True),
        sa.Column("versions", sa.JSON, nullable=False),
    )  # fmt: skip
    op.create_table(
        "runs", _id(), _root(), _text("directory"), _text("run"), _text("bed"), _text("trial"), _text("workload"),
        _text("started"), sa.Column("started_s", sa.Float), _text("outcome"), sa.Column("is_sealed", sa.Boolean, nullable=False),
        sa.Column("exit", sa.BigInteger), sa.Column("duration_s", sa.Float), sa.Column("ttr_s", sa.Float), _text("night"),
        _text("cell"), sa.Column("repeat", sa.BigInteger, nullable=False),
        sa.Column("suspects_id", sa.Integer, sa.ForeignKey("suspects.id")), _text("signature"), sa.UniqueConstraint("root_id", "directory"),
    )  # fmt: skip
    op.create_table(
        "series", _id(), _text("node"), _text("metric"), _text("unit"), _text("better"), sa.Column("ceiling", sa.Float),
        _text("hardware"), _text("workload"), _text("parameters"),
    )  # fmt: skip
    op.create_table(
        "measurements", sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), nullable=False), sa.Column("values", sa.JSON, nullable=False),
        sa.Column("median", sa.Float), sa.PrimaryKeyConstraint("run_id", "series_id"),
    )  # fmt: skip
    op.create_table(
        "skipped", _root(), _text("directory"), _text("signature"), _text("reason"),
        sa.PrimaryKeyConstraint("root_id", "directory"),
    )  # fmt: skip
    op.create_index("ix_nights_bed", "nights", ["root_id", "bed", "number"])
    op.create_index("ix_runs_started", "runs", ["root_id", "started_s"])
    op.create_index("ix_runs_night", "runs", ["root_id", "night"])
    op.create_index("ix_runs_trial", "runs", ["root_id", "trial"])
    op.create_index("ix_series_metric", "series", ["metric"])
    op.create_index("ix_measurements_series", "measurements", ["series_id", "run_id"])


def _id() -> sa.Column[int]:
    return sa.Column("id", sa.Integer, primary_key=True, autoincrement=False)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _root() -> sa.Column[int]:
    return sa.Column("root_id", sa.Integer, sa.ForeignKey("roots.id"), nullable=False)
