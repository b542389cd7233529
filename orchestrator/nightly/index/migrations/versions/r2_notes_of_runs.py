"""Notes of runs: what was left out of their measurements, and why. Runs are read again for them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r2"
down_revision = "r1"


def upgrade() -> None:
    op.add_column("runs", sa.Column("notes", sa.JSON, nullable=False, server_default="[]"))
    op.execute("UPDATE runs SET signature = ''")
