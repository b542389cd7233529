"""The catalogue of the checkers in the source tree, for tests that need no plugin discovery."""

from __future__ import annotations

import importlib
import pkgutil

from orchestrator import checkers, faults
from orchestrator.model.plugin import Catalogue, Plugin


def modules(package: object) -> dict[str, Plugin]:
    found = {}
    for info in pkgutil.iter_modules(package.__path__):  # type: ignore[attr-defined]
        module = importlib.import_module(f"{package.__name__}.{info.name}")  # type: ignore[attr-defined]
        name = info.name.replace("_", "-")
        summary = (module.__doc__ or "").splitlines()[0]
        found[name] = Plugin(name=name, summary=summary, path=str(module.__file__), module=module)
    return found


CATALOGUE = Catalogue(checkers=modules(checkers), faults=modules(faults))
#: These judge every run, whatever the trial names.
ALWAYS = {
    "finished",
    "fault-verified",
    "planned-faults-only",
    "membership",
    "no-orphans",
    "bundle-complete",
    "evidence-agrees",
    "history-replays",
}
