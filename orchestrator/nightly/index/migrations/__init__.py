"""Migrations of the index's tables. A new one is a file in ``versions``; HEAD names the last."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection

HEAD = "r4"
#: The table that holds the revision of the database.
VERSION_TABLE = "ccbed_index_version"


def upgrade(connection: Connection, revision: str = HEAD) -> None:
    """Bring the tables to ``revision``, in the transaction of ``connection``."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(Path(__file__).parent)
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    steps = list(scripts.iterate_revisions(revision, context.get_current_revision() or "base"))
    with Operations.context(context):
        for script in reversed(steps):
            script.module.upgrade()
            context.stamp(scripts, script.revision)


def revisions() -> tuple[str, ...]:
    """All revisions that this version knows, the last first."""
    from alembic.script import ScriptDirectory

    return tuple(script.revision for script in ScriptDirectory(Path(__file__).parent).walk_revisions())
