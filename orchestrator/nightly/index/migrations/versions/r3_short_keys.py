"""Keys without parameters that have the default of their workload. Runs are read again for them."""

from __future__ import annotations

from alembic import op

revision = "r3"
down_revision = "r2"


def upgrade() -> None:
    op.execute("UPDATE runs SET signature = ''")
