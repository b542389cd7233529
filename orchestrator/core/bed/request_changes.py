"""The differences between two create requests of a node's container, field by field, in the words of the inventory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...model import container

Request = Mapping[str, Any]

#: Path in the request -> the variable that decides it. Another path is named as it is.
_VARIABLES = {
    "Image": "ccbed_image", "User": "ccbed_user", "Entrypoint": "ccbed_python", "HostConfig.NanoCpus": "ccbed_cpus",
    "HostConfig.Memory": "ccbed_memory", "HostConfig.MemorySwap": "ccbed_memory", "HostConfig.Tmpfs": "ccbed_memory",
    "HostConfig.ShmSize": "ccbed_shm_size", "HostConfig.DeviceRequests": "ccbed_gpus", "HostConfig.Devices": "ccbed_rdma",
    "HostConfig.CapAdd": "ccbed_rdma", "HostConfig.Ulimits": "ulimits", "mount 1": "ccbed_shared_dir", "no_proxy": "ccbed_no_proxy",
}  # fmt: skip


def changes(before: Request, after: Request) -> tuple[str, ...]:
    """A short line for each field that differs. Values of the environment may be secret: it is named without them.

    A node that the bed no longer has may keep its name in /etc/hosts.
    """
    old, new = dict(_fields(before)), dict(_fields(after))
    lines: dict[str, str] = {}
    for path in (path for path in {**old, **new} if old.get(path) != new.get(path)):
        kind, _, name = path.partition(" ")
        variable = _VARIABLES.get(path, path)
        values = [str(fields.get(path, "none")) for fields in (old, new)]
        if kind == "env":
            lines[kind] = f"{lines.get(kind, 'ccbed_env')} {name}"
        elif kind != "host" or path in new:
            is_text = all(isinstance(fields.get(path, ""), str) for fields in (old, new))
            lines.setdefault(variable, f"{variable} {' -> '.join(values) if is_text else 'changed'}")
    return tuple(lines.values())


def _fields(request: Request) -> Iterator[tuple[str, object]]:
    """(path, value): of the environment, mounts and hosts each entry by its name."""
    host = request["HostConfig"]
    env = dict(item.split("=", 1) for item in request["Env"])
    hosts = dict(item.split(":", 1) for item in host["ExtraHosts"])
    direct = {*env.pop("no_proxy", "").split(","), *env.pop("NO_PROXY", "").split(",")}
    yield "no_proxy", sorted(direct - {*hosts, *hosts.values()})
    yield "role", request["Labels"][container.ROLE]
    yield "Entrypoint", request["Entrypoint"][0]
    yield from ((f"env {name}", value) for name, value in env.items() if not name.startswith("CCBED_"))  # of this start
    yield from ((f"host {name}", address) for name, address in hosts.items() if "." not in name)
    for index, mount in enumerate(host["Mounts"]):  # the second is the shared directory, whatever its path
        text = mount["Source"] + (":ro" if mount["ReadOnly"] else "")
        yield f"mount {index if index == 1 else mount['Target']}", text
    yield from (
        (name, value) for name, value in request.items() if name not in ("Entrypoint", "Env", "HostConfig", "Labels")
    )
    yield from ((f"HostConfig.{name}", value) for name, value in host.items() if name not in ("ExtraHosts", "Mounts"))
