"""Files to begin with: copies of what ccbed ships, with comments from the texts of the options that they do not use."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from ..core.inventory import parse_inventory, variables
from ..core.spec import parameter_docs, written_values
from ..model.errors import UsageError
from ..model.frozen import MISSING, dataclass, fields
from ..model.plugin import Catalogue
from ..store import shipped
from . import settings
from .places import short_path
from .requests import argument, option
from .session import Session

_FILES = {"inventory": "my-bed.yml", "trial": "my-trial.yml", "config": settings.PROJECT}
_SCHEMA = Path(parse_inventory.__file__).with_name("inventory.schema.json")
_CONFIG = """\
# Settings of ccbed for this project. The keys are the names of options: ccbed VERB --help lists them.
# An option on the command line is stronger, then a variable CCBED_<OPTION>, this file, ~/.config/ccbed/config.toml.
# ccbed config show prints every setting and where it comes from. Remove the # of what you want to set.

# For every verb that has the option:
# bed = "local"
# runs-dir = "runs"
# quiet = false

# For one verb; the parameters of workloads are options of run as well:
# [run]
# recovery = "spare,restart"
# wall = "2h"
# epochs = 3

# [image.build]
# kind = "cuda"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """The request of `ccbed init`. ``file``: None for one of the usual name."""

    what: Literal["inventory", "trial", "config"] = argument("inventory", choices=tuple(_FILES))
    file: Path | None = argument(None)
    like: str | None = option(
        None,
        "Begin with this inventory or trial that ccbed ships.  [default: local, dp-ring]",
        metavar="NAME",
        completes="trials",
    )
    faults: tuple[str, ...] = option(
        (), "Of a trial: inject this fault. Repeatable.", metavar="NAME", flags=("--fault",), completes="faults"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A file that was written, and the command that follows."""

    file: Path
    next: str


def write(session: Session, request: InitRequest) -> Begun:
    """Write a file to begin with. Raises UsageError, also where the file exists."""
    if request.faults and request.what != "trial":
        raise UsageError("--fault needs a trial", hint=f"ccbed init trial --fault {request.faults[0]}")
    file = request.file or Path(_FILES[request.what])
    match request.what:
        case "inventory":
            text, follow = inventory(request.like or "local"), f"ccbed up {short_path(file)}"
        case "trial":
            text = trial(session.catalogue, request.like or "dp-ring", file.stem, request.faults)
            follow = f"ccbed run {short_path(file)} --dry-run"
        case "config":
            text, follow = _CONFIG, "ccbed config show"
    _write(file, text, 0o666 & ~session.umask)
    return Begun(file=file, next=follow)


def _write(file: Path, text: str, mode: int) -> None:
    """Raises UsageError for a file that exists or cannot be written."""
    try:
        with file.open("x") as target:
            target.write(text)
            os.fchmod(target.fileno(), mode)
    except FileExistsError:
        raise UsageError(f"{short_path(file)}: exists, and stays as it is", hint="give another FILE") from None
    except OSError as error:
        raise UsageError(f"{short_path(file)}: cannot be written: {error.strerror}", hint="give another FILE") from None


def inventory(name: str) -> str:
    """A shipped inventory, and the variables that it does not set, with their meaning. Raises UsageError for an unknown name."""
    known = {path.name.partition(".")[0]: path for path in shipped.inventory_files(shipped.folder("inventories"))}
    if name not in known:
        raise UsageError(f"no inventory {name}; {written_values.nearest(name, known)}", hint="ccbed list inventories")
    text = known[name].read_text()
    match = re.search(r"^\s*ccbed_provider:\s*(\w+)", text, re.MULTILINE)
    provider = match[1] if match else "process"
    head = "# More variables, of all hosts under vars or of one host; all are optional."
    return "\n".join([text.rstrip(), "", head, "".join(_variables(text, provider))])


def _variables(text: str, provider: str) -> Iterator[str]:
    meanings = json.loads(_SCHEMA.read_text())["definitions"]["variables"]["properties"]
    for name, variable in variables.KNOWN.items():
        full = f"{variables.PREFIX}{name}"
        if provider in variable.honoured_by and f"{full}:" not in text:
            yield from _comment(full, str(meanings.get(full, {}).get("description", "")))


def trial(catalogue: Catalogue, like: str, name: str, faults: Sequence[str]) -> str:
    """A built-in trial under another name, with faults, and the parameters that it does not set. Raises UsageError."""
    if like not in catalogue.trials:
        raise UsageError(f"no trial {like}; {written_values.nearest(like, catalogue.trials)}", hint="ccbed list trials")
    unknown = [fault for fault in faults if fault not in catalogue.faults]
    if unknown:
        raise UsageError(
            *(f"no fault {fault}; {written_values.nearest(fault, catalogue.faults)}" for fault in unknown),
            hint="ccbed list faults",
        )
    text = Path(catalogue.trials[like]).read_text().rstrip()
    text = re.sub(r"^trial: .*$", f"trial: {_name(name)}", text, count=1, flags=re.MULTILINE)
    match = re.search(r"^workload: *([\w-]+)", text, re.MULTILINE)
    workload = match[1] if match else ""
    world = re.search(r"^world:.*?\bnodes: *(\d+)", text, re.MULTILINE)
    node = min(2, int(world[1]) - 1) if world else 0
    own = "".join(_fault(catalogue, fault, node) for fault in faults)
    has_faults = re.search(r"^faults:", text, re.MULTILINE)
    if own and has_faults:
        text = re.sub(r"^faults:.*\n", lambda match: f"{match[0]}{own}", text, count=1, flags=re.MULTILINE)
    elif own:
        text = f"{text}\nfaults:\n{own.rstrip()}"
    elif not has_faults:
        example = _fault(catalogue, "crash-node", node).rstrip()
        text = f"{text}\n# faults:      # ccbed list faults; without `at` a fault acts halfway\n# {example}"
    head = f"# More parameters of workload {workload}, for params, with their defaults."
    return "\n".join([text, "", head, "".join(_params(catalogue, workload, text))])


def _params(catalogue: Catalogue, workload: str, text: str) -> Iterator[str]:
    cls = catalogue.workloads[workload].module.Params
    meanings = parameter_docs.read_meanings(cls)
    for field in fields(cls):
        if not re.search(rf"\b{field.name}:", text):
            default = parameter_docs.format_value(None if field.default is MISSING else field.default)
            yield from _comment(f"{field.name}: {default}".rstrip(": "), meanings.get(field.name, ""))


def _fault(catalogue: Catalogue, name: str, node: int) -> str:
    """The line of a fault on a node, with its parameters and what it does."""
    cls: Any = catalogue.faults[name].module.Params
    given = {
        field.name: parameter_docs.format_value(field.default) for field in fields(cls) if field.default is not MISSING
    }
    pairs = "".join(f", {field}: {value}" for field, value in given.items() if value)
    return f"  - {name}: {{node: {node}{pairs}}}     # {catalogue.faults[name].summary}\n"


def _name(stem: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", stem).strip("._-") or "my-trial"


def _comment(head: str, text: str) -> Iterator[str]:
    lines = textwrap.wrap(text, 90) or [""]
    yield f"# {head:<24} {lines[0]}".rstrip() + "\n"
    yield from (f"# {'':<24} {line}\n" for line in lines[1:])
