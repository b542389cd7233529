"""The host of a node among its suspects. Runs are read again for it."""

from __future__ import annotations

from alembic import op

revision = "r4"
down_revision = "r3"


def upgrade() -> None:
    op.execute("UPDATE runs SET signature = ''")
