#!/usr/bin/env python3
"""A lab of hosts on one Linux machine: up, down, status, load, power, port, engine, sshd, enter."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab import images, layout, machines, processes, rising


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--root", type=Path, default=argparse.SUPPRESS, help=f"default {layout.DEFAULT_ROOT}")
    parser = argparse.ArgumentParser(prog="lab", description=__doc__, parents=[shared])
    verbs = parser.add_subparsers(dest="verb", required=True)

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=text, parents=[shared])

    up = verb("up", "bring the hosts up; what runs already stays")
    up.add_argument("--hosts", type=int, default=3)
    up.add_argument("--rate", default="", help="of every link, both ways: 1gbit, 100mbit …; default: unshaped")
    up.add_argument("--form", default="", choices=layout.FORMS, help="ipv6: no IPv4 address; two-nics: nodes use eth1")
    up.add_argument("--image", default="", help="load this image of this machine's engine into all hosts' engines")
    down = verb("down", "take everything away; the engines' images are kept for the next time")
    down.add_argument("--purge", action="store_true", help="the engines' data and the keys too")
    verb("status", "JSON: each host's address, power, port, SSH server, engine")
    load = verb("load", "bring an image of this machine's engine to all hosts")
    load.add_argument("image", nargs="?", default=layout.IMAGE)
    for name, states in (("power", ("off", "on")), ("port", ("down", "up"))):
        subparser = verb(name, f"{' or '.join(states)}, of one host")
        subparser.add_argument("state", choices=states)
        subparser.add_argument("host")
    for name in ("engine", "sshd"):
        subparser = verb(name, "start, stop or kill this service of one host")
        subparser.add_argument("state", choices=("start", "stop", "kill", "status"))
        subparser.add_argument("host")
    enter = verb("enter", "run a command on a host (default: a shell)")
    enter.add_argument("host")
    enter.add_argument("command", nargs=argparse.REMAINDER)
    return parser


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    root = Path(getattr(options, "root", layout.DEFAULT_ROOT)).resolve()
    lacking = rising.lack()
    if lacking:
        for reason in lacking:
            print(f"error: a lab needs what this machine lacks: {reason}", file=sys.stderr)
        return 3
    try:
        return int(globals()[f"_{options.verb}"](options, root) or 0)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"error: {error}", file=sys.stderr)
        return 4


def _lab(root: Path) -> layout.Lab:
    lab = rising.known(root)
    if lab is None:
        raise ValueError(f"no lab is up in {root}; next: python tests/lab/lab.py up --root {root}")
    return lab


def _pid(lab: layout.Lab, host: str) -> int:
    lab.host(host)
    first_pids = processes.first(lab)
    if host not in first_pids:
        raise RuntimeError(f"{host} has no power; next: {lab.tool} power on {host}")
    return first_pids[host]


def _up(options: Any, root: Path) -> None:
    began = time.monotonic()
    lab = layout.Lab(root=root, count=options.hosts, rate=options.rate, form=options.form)
    with rising.locked(root):
        pids = rising.up(lab)
        print(
            f"{lab.count} hosts up: {lab.hosts[0].address} to {lab.hosts[-1].address}, {time.monotonic() - began:.1f} s"
        )
        print(f"inventory: {root / 'inventory.yml'}")
        if options.image:
            _bring(lab, options.image, pids)


def _bring(lab: layout.Lab, image: str, pids: dict[str, int]) -> None:
    began = time.monotonic()
    loaded = images.load(lab, image, pids)
    if loaded:
        print(f"{image} loaded into {', '.join(loaded)}, {time.monotonic() - began:.1f} s")
    else:
        print(f"{image} is on all hosts")


def _down(options: Any, root: Path) -> None:
    if not root.is_dir():
        root_less = layout.Lab(root=root)
        rising.down(root_less)
        return
    with rising.locked(root):
        rising.down(rising.known(root) or layout.Lab(root=root), purge=options.purge)


def _load(options: Any, root: Path) -> None:
    lab = _lab(root)
    with rising.locked(root):
        first_pids = processes.first(lab)
        _bring(lab, options.image, {host: pid for host, pid in first_pids.items() if host != layout.SWITCH})


def _status(_options: Any, root: Path) -> None:
    lab = _lab(root)
    first_pids = processes.first(lab)
    rows = [_row(lab, host, first_pids) for host in lab.hosts]
    print(json.dumps({"root": str(root), "rate": lab.rate, "hosts": rows}, indent=1))


def _row(lab: layout.Lab, host: layout.Host, first_pids: dict[str, int]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": host.name, "address": host.address, "power": "off"}
    pid = first_pids.get(host.name)
    if pid is None:
        return row
    link = processes.inside(
        first_pids[layout.SWITCH], ["ip", "-json", "link", "show", layout.port(host)], net_only=True
    )
    port = "up" if "master" in json.loads(link)[0] else "down"
    services = {name: machines.service(pid, name, "status") for name in ("engine", "sshd")}
    return {**row, "power": "on", "pid": pid, "port": port, **services}


def _power(options: Any, root: Path) -> None:
    lab = _lab(root)
    host = lab.host(options.host)
    if options.state == "off":
        machines.power_off(lab, host)
        return
    with rising.locked(root):
        first_pids = processes.first(lab)
        if host.name in first_pids:
            return
        pid = machines.power_on(lab, host, first_pids[layout.SWITCH])
        machines.start(pid)
    machines.wait(host, pid)


def _port(options: Any, root: Path) -> None:
    lab = _lab(root)
    _pid(lab, options.host)
    machines.port(processes.first(lab)[layout.SWITCH], lab.host(options.host), options.state)


def _engine(options: Any, root: Path) -> None:
    _serve("engine", options, root)


def _sshd(options: Any, root: Path) -> None:
    _serve("sshd", options, root)


def _serve(name: str, options: Any, root: Path) -> None:
    lab = _lab(root)
    pid = _pid(lab, options.host)
    output = machines.service(pid, name, options.state)
    if options.state == "status":
        print(output)
    if options.state == "start":
        machines.wait_for(name, lab.host(options.host), pid)


def _enter(options: Any, root: Path) -> int:
    pid = _pid(_lab(root), options.host)
    command = [word for word in options.command if word != "--"] or ["/bin/bash"]
    argv = ["nsenter", "-t", str(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--wd=/", "--", *command]
    return subprocess.run(argv, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
