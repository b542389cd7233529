"""The ccbed_* variables of an inventory: their readers, the providers that honour them, and templates in their values.

Templates are filled in with Jinja, without Ansible's lookups: `{{ ansible_host }}` -> the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ... import products
from ...model import codec
from ...model.act import SAFETY_ORDER
from ...model.frozen import dataclass
from ..bed import links
from ..spec import written_values
from . import literal

PREFIX = "ccbed_"
#: The providers of this version.
PROVIDERS = ("process", "docker", "slurm")
PROCESS = ("process",)
DOCKER = ("docker",)
SLURM = ("slurm",)
#: The maximum of nodes, spares and GPUs on a host: a typing error must not fork more.
MAX_COUNT = 1024
MAX_START_TIMEOUT_S = 3600.0
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """``read`` converts a value or raises ValueError; ``bed_wide``: all hosts of a bed must agree; ``honoured_by`` providers."""

    read: Callable[[Any], Any]
    bed_wide: bool = False
    honoured_by: tuple[str, ...] = PROVIDERS


def bed_name(value: Any) -> str:
    """A bed's name. Raises ValueError for a name that is not a safe part of a path."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("must be 1 to 40 of a-z 0-9 . _ - and begin with a letter or digit")
    return value


def _provider(value: Any) -> str:
    if value in products.NAMES and value not in products.folders():
        raise ValueError(f"{products.NAMES[value]} are not installed")
    if value in PROVIDERS:
        return str(value)
    raise ValueError(f"unknown provider; {written_values.nearest(str(value), PROVIDERS)}")


def _count(value: Any) -> int:
    number = written_values.whole(value)
    if number > MAX_COUNT:
        raise ValueError(f"must be <= {MAX_COUNT}")
    return number


def _gpus(value: Any) -> int | tuple[str, ...]:
    """A count, or the devices: indices, UUIDs, CDI names, or ``all``."""
    if value == "all":
        return ("all",)
    if isinstance(value, list):
        devices = tuple(literal.device(item) for item in value)
        if len(set(devices)) < len(devices):
            raise ValueError("names a device twice")
        return devices
    return _count(value)


def _environment(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("must be a mapping of names to values")
    wrong = [name for name in value if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", name)]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is not a valid name of an environment variable")
    nested = [name for name, item in value.items() if isinstance(item, dict | list) or item is None]
    if nested:
        raise ValueError(f"{nested[0]} must be text")
    if with_nul := [name for name, item in value.items() if "\0" in str(item)]:
        raise ValueError(f"{with_nul[0]} must not contain a NUL character")
    return {
        name: ("true" if item else "false") if isinstance(item, bool) else str(item) for name, item in value.items()
    }


def _start_timeout(value: Any) -> float:
    limit = written_values.seconds(value)
    if not 1.0 <= limit <= MAX_START_TIMEOUT_S:
        raise ValueError(f"must be a time from 1s to {MAX_START_TIMEOUT_S / 60:.0f}m")
    return limit


def _safety(value: Any) -> str:
    if value not in SAFETY_ORDER:
        raise ValueError(f"must be one of {', '.join(SAFETY_ORDER)}")
    return str(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _isolation(value: Any) -> str:
    if value not in ("none", "namespace"):
        raise ValueError("must be none or namespace")
    return str(value)


def _cpus(value: Any) -> str:
    """A number of cores; fractions are valid."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or not 0 < number <= MAX_COUNT:
        raise ValueError("must be a number of cores such as 2 or 0.5")
    return f"{number:g}"


def _size(value: Any) -> str:
    written_values.size(str(value))
    return str(value)


def _list(value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    return tuple(literal.text(item) for item in items)


def _mounts(value: Any) -> tuple[str, ...]:
    """``source:target`` or ``source:target:ro``, both absolute."""
    mounts = _list(value)
    for mount in mounts:
        source, _, rest = mount.partition(":")
        target, _, mode = rest.partition(":")
        if not (source.startswith("/") and target.startswith("/") and mode in ("", "ro", "rw")):
            raise ValueError(f"{written_values.show(mount)}: must be /source:/target or /source:/target:ro")
        for path in (source, target):
            literal.absolute_path(path)
    return mounts


def _image(value: Any) -> str:
    """The name of an image; of a Slurm job's container the path of a file."""
    return literal.path(value) if str(value).startswith(("/", "~/")) else literal.image(value)


def _network(value: Any) -> str:
    if value not in ("host", "private"):
        raise ValueError("must be host or private")
    return str(value)


def _on_off(value: Any) -> Any:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _on_off_key(key: Any) -> Any:
    """JSON, as ansible-inventory lists variables, has texts in place of boolean keys."""
    return {"true": "on", "false": "off"}.get(key, _on_off(key))


def _on_off_items(value: Any) -> Any:
    return [_on_off(item) for item in value] if isinstance(value, list) else value


def _control(*states: str) -> Callable[[Any], dict[str, tuple[str, ...]]]:
    """A reader of a mapping from ``states`` to the argv that produces the state.

    YAML reads a bare ``off`` or ``on`` as a boolean, both as a key and as an argument; this reader restores the words.
    """

    def read(value: Any) -> dict[str, tuple[str, ...]]:
        if isinstance(value, dict):
            value = {_on_off_key(key): _on_off_items(item) for key, item in value.items()}
        if not isinstance(value, dict) or sorted(value) != sorted(states):
            raise ValueError(f"must be a mapping with {' and '.join(states)} to lists: a program and its arguments")
        commands = {state: _list(value[state]) for state in states}
        if empty := [state for state, argv in commands.items() if not argv]:
            raise ValueError(f"{empty[0]}: must be a program and its arguments")
        return commands

    return read


def _link(value: Any) -> dict[str, Any]:
    """A LinkSpec as plain values; see ``links``."""
    return dict(codec.plain(links.parse(value)))


KNOWN: Mapping[str, Variable] = {
    "bed": Variable(read=bed_name, bed_wide=True),
    "provider": Variable(read=_provider, bed_wide=True),
    "nodes": Variable(read=_count),
    "spares": Variable(read=_count),
    "max_nodes": Variable(read=_count, honoured_by=PROCESS + DOCKER),
    "gpus": Variable(read=_gpus),
    "address": Variable(read=literal.numeric_address, honoured_by=PROCESS + DOCKER),
    "interface": Variable(read=literal.interface),
    "workdir": Variable(read=literal.path, bed_wide=True),
    "shared_dir": Variable(read=literal.path, bed_wide=True),
    "data_dir": Variable(read=literal.path, bed_wide=True),
    "env": Variable(read=_environment),
    "python": Variable(read=literal.path),
    "isolation": Variable(read=_isolation, bed_wide=True, honoured_by=PROCESS),
    "link": Variable(read=_link, bed_wide=True, honoured_by=PROCESS),
    "allow_faults": Variable(read=_safety, bed_wide=True),
    "start_timeout": Variable(read=_start_timeout, bed_wide=True),
    "standby": Variable(read=_count, honoured_by=DOCKER),
    "image": Variable(read=_image, honoured_by=DOCKER + SLURM),
    "mounts": Variable(read=_mounts, honoured_by=DOCKER + SLURM),
    "user": Variable(read=literal.container_user, honoured_by=DOCKER),
    "rdma": Variable(read=_boolean, honoured_by=DOCKER),
    "cpus": Variable(read=_cpus, honoured_by=DOCKER),
    "memory": Variable(read=_size, honoured_by=DOCKER),
    "shm_size": Variable(read=_size, honoured_by=DOCKER),
    "network": Variable(read=_network, bed_wide=True, honoured_by=DOCKER),
    "http_proxy": Variable(read=literal.proxy, honoured_by=DOCKER),
    "https_proxy": Variable(read=literal.proxy, honoured_by=DOCKER),
    "no_proxy": Variable(read=literal.no_proxy, honoured_by=DOCKER),
    "engine": Variable(read=literal.absolute_path, honoured_by=DOCKER),
    "engine_control": Variable(read=_control("start", "stop"), honoured_by=DOCKER),
    "power": Variable(read=_control("off", "on"), honoured_by=DOCKER + SLURM),
    "ssh_control": Variable(read=_control("start", "stop"), honoured_by=DOCKER),
    "switch_port": Variable(read=_control("down", "up"), honoured_by=DOCKER),
    "known_hosts": Variable(read=literal.file, honoured_by=DOCKER),
    "ssh_first_contact": Variable(read=_boolean, honoured_by=DOCKER),
    **{
        name: Variable(read=read, honoured_by=(module.PROVIDER,))
        for module in products.parts("inventory_variables")
        for name, read in module.READERS.items()
    },
}
#: Counts, sizes and words of a closed list: they are not secret, even in an encrypted file.
PUBLIC = (
    "bed", "provider", "nodes", "spares", "standby", "max_nodes", "gpus", "isolation", "link", "allow_faults", "rdma", "cpus", "memory",
    "shm_size", "start_timeout", "network", "ssh_first_contact", "container", "ports",
)  # fmt: skip


#: A template may name a variable that is itself a template; deeper nesting is treated as a cycle.
_MAX_DEPTH = 8


def has_template(value: Any) -> bool:
    if isinstance(value, dict):
        return any(has_template(item) for item in value.values())
    if isinstance(value, list):
        return any(has_template(item) for item in value)
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def fill_templates(value: Any, context: Mapping[str, Any]) -> Any:
    """``value`` with all templates in it filled in; numbers stay numbers. Raises ValueError."""
    if isinstance(value, dict):
        return {key: fill_templates(item, context) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_templates(item, context) for item in value]
    result: Any = value
    for _ in range(_MAX_DEPTH):
        if not has_template(result):
            return result
        result = _render(result, context) if isinstance(result, str) else fill_templates(result, context)
    raise ValueError("a template that refers to itself")


def _render(text: str, context: Mapping[str, Any]) -> Any:
    import jinja2
    from jinja2 import nativetypes, sandbox

    class Environment(sandbox.SandboxedEnvironment, nativetypes.NativeEnvironment):
        """Values keep their types, and templates cannot access the interpreter."""

    try:
        rendered: Any = Environment(undefined=jinja2.StrictUndefined).from_string(text).render(**context)
        if isinstance(rendered, jinja2.Undefined):
            str(rendered)  # raises an error that names the undefined variable
        return rendered
    except jinja2.TemplateError as error:
        raise ValueError(f"a template that cannot be rendered: {error.message}; write the value") from None
    except (TypeError, ArithmeticError) as error:
        raise ValueError(f"a template that cannot be rendered: {error}; write the value") from None
