"""The reports of a run: what draws them is loaded while others work, and one that breaks takes nothing else with it."""

from __future__ import annotations

import threading
import traceback
from contextlib import suppress
from typing import Any

from ..model.plugin import Catalogue
from ..model.run import Run


def ahead(catalogue: Catalogue) -> threading.Thread:
    """Make ready what will draw the reports; what is wrong with it is told when it is needed."""

    def load() -> None:
        with suppress(Exception):
            for plugin in catalogue.reports.values():
                getattr(plugin.module, "ahead", lambda: None)()

    loading = threading.Thread(target=load, daemon=True, name="ccbed-reports")
    loading.start()
    return loading


def rendered(run: Run, catalogue: Catalogue) -> dict[str, bytes]:
    """Every report by its path; one that breaks leaves its traceback in its place."""
    found: dict[str, bytes] = {}
    for plugin in catalogue.reports.values():
        module: Any = plugin.module
        try:
            found.update(module.render(run))
        except (Exception, SystemExit):  # noqa: BLE001 a user's plugin: whatever it raises, the verdicts stand
            found[f"{plugin.name}-failed.txt"] = traceback.format_exc().encode()
    return found
