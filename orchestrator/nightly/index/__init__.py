"""The index of runs: nights, runs and their metrics in a database, rebuilt from the bundles at will."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .refresh import ReadRun
    from .store import Index

#: The URL of a database server; without it the index is a file.
URL = "CCBED_DATABASE_URL"


def open(runs_dir: Path, *, state: Path | None = None, url: str | None = None, read: ReadRun | None = None) -> Index:
    """The index of a directory of runs, with this version's tables. Its content is as of the last ``refresh``.

    ``url``: of the database; the default is CCBED_DATABASE_URL, or else a file in ``state``.
    ``read``: the reader of a bundle. Raises UsageError for a wrong URL or a newer index, InfrastructureError for a
    database that cannot be reached.
    """
    from .store import Index

    if state is None:
        import platformdirs

        state = platformdirs.user_state_path("ccbed")
    return Index(runs_dir, state=state, url=os.environ.get(URL, "") if url is None else url, read=read)
