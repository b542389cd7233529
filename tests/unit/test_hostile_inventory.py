"""Every value of an inventory against every hostile text: rejected with its place, or plain data wherever it goes."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.core.bed import container_requests, nodes_from_inventory
from orchestrator.core.inventory import (
    literal,
    parse_inventory,
    parse_listing,
    ssh_options,
    variable_positions,
    variables,
)
from orchestrator.model import codec
from orchestrator.model.bed import BedSpec, Inventory
from orchestrator.model.errors import UsageError
from orchestrator.providers.ssh import destinations, helper_start
from orchestrator.slurm import cluster as slurm_job
from orchestrator.slurm import inventory_variables as slurm_options
from orchestrator.store import shipped

CANARY = "canary"
HOSTILE = {
    "substitution": f"$(touch {CANARY})",
    "backticks": f"`touch {CANARY}`",
    "variable": "$HOME/${IFS}x",
    "quote": f"'; touch {CANARY}; '",
    "double-quote": f'"; touch {CANARY}; "',
    "newline": f"x\ntouch {CANARY}\n",
    "nul": "x\0y",
    "dash": f"-oProxyCommand=touch {CANARY}",
    "space": "a b",
    "glob": "*?[a]",
    "redirection": f"x>{CANARY}",
    "background": f"x&touch {CANARY}",
    "unicode": "größe\u202egnp.exe",
    "jinja": f"{{{{ lookup('pipe', 'touch {CANARY}') }}}}",
    "jinja-comment": "{# x #}",
    "parent": "../../etc",
    "tilde": "~root",
    "percent": "%h%p%%",
    "backslash": "a\\b",
    "escape": "\x1b]0;x\x07",
    "long": "a" * 5000,
    "digits": "9" * 400,
    "scope": f"fe80::1%$(touch {CANARY})",
}
PATHS = ("workdir", "shared_dir", "data_dir", "engine", "known_hosts")
ARGV = ("power", "switch_port", "ssh_control", "engine_control")
#: What is data of the user's own by its nature: any text that a program can be given.
FREE_TEXT = ("env value", *ARGV)
STATES = {"power": ("off", "on"), "switch_port": ("down", "up")}


def _link(key: str) -> Callable[[str], Any]:
    return lambda text: {key: text}


def _control(name: str) -> Callable[[str], Any]:
    first, second = STATES.get(name, ("start", "stop"))
    return lambda text: {first: ["program", text], second: [text]}


#: Where a hostile text can stand: every known variable, once or in several shapes. A variable that is not named here is a scalar.
SHAPES: dict[str, Mapping[str, Callable[[str], Any]]] = {
    **{name: {name: str, f"{name} below": lambda text: f"/var/lib/{text}"} for name in PATHS},
    **{name: {name: _control(name)} for name in ARGV},
    "env": {"env value": lambda text: {"NAME": text}, "env name": lambda text: {text: "value"}},
    "gpus": {"gpus": lambda text: [text], "gpus count": str},
    "mounts": {
        "mounts source": lambda text: [f"/a/{text}:/b"],
        "mounts target": lambda text: [f"/a:/b/{text}"],
        "mounts": lambda text: [text],
    },
    "link": {f"link {key}": _link(key) for key in ("rate", "burst", "delay", "loss", "groups")},
    "image": {"image": str, "image tag": lambda text: f"ccbed/cpu:{text}"},
    "user": {"user": str, "user group": lambda text: f"1000:{text}"},
    "sbatch": {"sbatch value": lambda text: {"mem": text}, "sbatch option": lambda text: {text: "1"}},
}
KNOWN = {
    shape: (f"ccbed_{name}", make) for name in variables.KNOWN for shape, make in SHAPES.get(name, {name: str}).items()
}
REACH = {name: (name, str) for name in literal.ANSIBLE}
SSH = {
    f"ssh {option}": ("ansible_ssh_common_args", lambda text, option=option: f"-o {shlex.quote(f'{option}={text}')}")
    for option in ("ProxyJump", "HostName", "User", "Port")
}
WHERE: dict[str, tuple[str, Callable[[str], Any]]] = {**KNOWN, **REACH, **SSH, "host name": ("", str)}
#: A process bed honours these; all others belong to containers behind SSH.
OF_PROCESSES = ("isolation", *SHAPES["link"])
OF_SLURM = ("time", *slurm_options.NAMED, *SHAPES["sbatch"])


def document(where: str, text: str) -> dict[str, Any]:
    key, make = WHERE[where]
    of_processes = where in OF_PROCESSES
    reached = {"ansible_connection": "local"} if of_processes else {"ansible_host": "198.18.0.1"}
    provider = "process" if of_processes else "slurm" if where in OF_SLURM else "docker"
    given: dict[str, Any] = {"ccbed_provider": provider, "ccbed_bed": "lab", **reached}
    if key:
        given[key] = make(text)
    return {"all": {"vars": given, "hosts": {text if where == "host name" else "h1": {}}}}


def plain(where: str, text: str) -> Inventory:
    """As one YAML file is read."""
    return parse_inventory.parse(yaml.safe_dump(document(where, text)), "lab.yml")


def listed(where: str, text: str) -> Inventory:
    """As Ansible lists it."""
    content = document(where, text)["all"]
    hosts = dict.fromkeys(content["hosts"], content["vars"])
    listing = {"_meta": {"hostvars": hosts}, "all": {"children": ["ungrouped"]}, "ungrouped": {"hosts": list(hosts)}}
    return parse_listing.parse(variable_positions.Listing(content=listing), parse_listing.SourceFiles(path="lab.yml"))


def is_rejected(where: str, text: str) -> bool:
    """What must not come through. What is left is compared with the text itself, wherever it goes."""
    return where not in FREE_TEXT or "\0" in text or "{{" in text


@pytest.mark.parametrize("where", WHERE)
def test_a_hostile_value_is_rejected_with_its_place_or_is_plain_data(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = [
        f"{hostile}, {read.__name__}: {reason}"
        for hostile, text in HOSTILE.items()
        for read in (plain, listed)
        for reason in _what_is_wrong(read, where, text)
    ]
    assert wrong == []


def _what_is_wrong(read: Callable[[str, str], Inventory], where: str, text: str) -> Iterator[str]:
    bed, problems = _assembled(read, where, text)
    if not all(problem.startswith("lab.yml") and problem.isprintable() for problem in problems):
        yield f"problems without a place, or with control characters: {problems!r}"
    if bed is not None:
        if is_rejected(where, text) and not _is_harmless(where, text):
            yield f"accepts {text[:99]!r}"
        if text not in _strings(codec.plain(bed)):
            yield f"is changed on its way: {text[:99]!r}"
        _use(bed)
    if Path(CANARY).exists():
        Path(CANARY).unlink()
        yield "was executed"


def test_an_accepted_hostile_value_and_an_executed_one_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: a reader that lets all through, and one that runs what it reads."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(globals(), "is_rejected", lambda where, text: True)
    assert list(_what_is_wrong(plain, "env value", "a b")) == ["accepts 'a b'"]

    def careless(where: str, text: str) -> Inventory:
        Path(CANARY).touch()
        return plain(where, text)

    monkeypatch.setitem(globals(), "is_rejected", lambda where, text: False)
    assert list(_what_is_wrong(careless, "env value", "a b")) == ["was executed"]


def _assembled(read: Callable[[str, str], Inventory], where: str, text: str) -> tuple[BedSpec | None, Sequence[str]]:
    try:
        return nodes_from_inventory.assemble_bed(read(where, text), agent="a" * 6, state="/state", home="/h"), ()
    except UsageError as error:
        return None, error.problems


def _is_harmless(where: str, text: str) -> bool:
    """Names of files of this machine may lead upwards; a long name is one where nothing says how long it may be."""
    return where in ("known_hosts", "known_hosts below", "ansible_ssh_private_key_file") and text == HOSTILE["parent"]


def _strings(value: Any) -> str:
    """All text in a value, each on its own."""
    if isinstance(value, dict):
        return "\0".join(_strings(part) for item in value.items() for part in item)
    return "\0".join(map(_strings, value)) if isinstance(value, list | tuple) else str(value)


def _use(bed: BedSpec) -> None:
    """Everything that is made of a bed and handed to a program: each command is run by a real shell that only prints it."""
    for host in bed.hosts:
        argv = helper_start.command(host.python, bed.hostdir, bed.name, [bed.shared_dir], b"")
        for words in (argv, *host.power.values(), *host.ssh_control.values(), *host.engine_control.values()):
            assert _through_a_shell(shlex.join(words)) == list(words)
        _, way = destinations.resolve(host, Path("/nonexistent"))
        assert way == "" or _through_a_shell(way)[0] == "ssh"
    if bed.slurm:
        options = slurm_job.job_options(bed.slurm, bed.name, "comment")
        assert _through_a_shell(shlex.join(options)) == options
    for node in (node for node in bed.nodes if node.container):
        request = container_requests.request(bed, node, archive="/a.pyz", owner=(0, 0), addresses={}, tag="t")
        assert set(node.env.values()) <= {item.partition("=")[2] for item in request["Env"]}


def _through_a_shell(command: str) -> list[str]:
    printed = subprocess.run(
        ["/bin/sh", "-c", f"printf '%s\\0' {command}"], capture_output=True, text=True, check=True, timeout=900
    )
    return printed.stdout.split("\0")[:-1]


def test_every_known_variable_is_tried() -> None:
    assert {key for key, _ in WHERE.values() if key.startswith("ccbed_")} == {
        f"ccbed_{variable}" for variable in variables.KNOWN
    }
    assert set(parse_listing.REACH) - set(ssh_options.VARIABLES) == set(literal.ANSIBLE)


def test_usual_values_are_accepted() -> None:
    """The negative control of the readers: they do not reject everything."""
    usual: Mapping[Callable[[Any], Any], tuple[str, ...]] = {
        literal.path: ("/var/lib/ccbed", "~/ccbed", "/scratch/größe/a_b-c+d@e=f,g.h"),
        literal.file: ("keys/id", "../keys/id", "~/.ssh/id_ed25519"),
        literal.host_name: ("h1", "gpu-01.example.org", "10.0.0.1", "2001:db8::1", "localhost", "node_1"),
        literal.address: ("gpu-01.example.org", "10.0.0.1", "fe80::1%eth0"),
        literal.numeric_address: ("10.0.0.1", "::1", "fe80::1%bond0.7"),
        literal.user: ("root", "first.last", "me@example.org", "svc$"),
        literal.container_user: ("1000", "1000:1000"),
        literal.interface: ("eth0", "bond0.100", "enp0s31f6", "br-lan", "eth0:1"),
        literal.image: ("ccbed/cpu:2.13.0", "registry.example.org:5000/a/b:1", f"a/b@sha256:{'0' * 64}"),
        literal.device: ("0", "GPU-8f6c2a", "nvidia.com/gpu=0", "MIG-1/2/3"),
        literal.program: ("python3", "/usr/bin/python3.11", "/opt/venv+1/bin/python"),
        literal.jump: ("bastion", "me@bastion:2222,other", "[2001:db8::1]:22", "ssh://me@bastion"),
    }
    assert [(read(text), text) for read, texts in usual.items() for text in texts if read(text) != text] == []


# --- the playbooks, also where nothing was checked before them (they can be run by hand) ----------------------------------


def _scripts() -> Iterator[tuple[str, list[str]]]:
    """(file and task, argv) of each task of the playbooks that starts a shell."""
    for file in sorted(shipped.folder("playbooks").rglob("*.yml")):
        for task in _tasks(yaml.safe_load(file.read_text())):
            argv = task.get("ansible.builtin.command", {}).get("argv", [])
            if argv[:1] == ["sh"]:
                yield f"{file.name}: {task['name']}", [str(word) for word in argv]


def _tasks(content: Any) -> Iterator[dict[str, Any]]:
    for item in content if isinstance(content, list) else [content] if isinstance(content, dict) else []:
        yield item
        for key in ("tasks", "block", "rescue"):
            yield from _tasks(item.get(key, []))


SCRIPTS = dict(_scripts())
STUBS = ("docker", "zstd", "firewall-cmd", "kill", "sleep", "apt-get", "apt-cache", "systemctl")


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_shells_of_the_playbooks_keep_hostile_arguments_as_they_are(script: str, tmp_path: Path) -> None:
    shell, flags, text, name, *arguments = SCRIPTS[script]
    assert "{{" not in text, "a template inside of a script is code"
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for program in STUBS:
        (stubs / program).write_text("#!/bin/sh\ncat >/dev/null\n")
        (stubs / program).chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    for hostile in HOSTILE.values():
        usable = hostile.replace("\0", "").replace("/", "").removeprefix("-")[:100]
        words = [f"{work}/{usable}" for _ in arguments]
        words = ["zstd" if "program" in given else word for given, word in zip(arguments, words, strict=True)]
        environment = {"PATH": f"{stubs}:/usr/bin:/bin"}
        subprocess.run(
            [shell, flags, text, name, *words], cwd=work, env=environment, input=b"", timeout=900, check=False
        )
        assert not list(tmp_path.rglob(CANARY)), f"{hostile!r} was executed"


def test_the_known_hosts_of_an_inventory_are_one_word_for_ssh() -> None:
    import jinja2

    template = yaml.safe_load((shipped.folder("playbooks") / "vars.yml").read_text())["ansible_ssh_extra_args"]
    environment = jinja2.Environment()
    environment.filters |= {"quote": shlex.quote, "bool": bool}
    for hostile in (*HOSTILE.values(), f"/k -o ProxyCommand='touch {CANARY}'"):
        text = environment.from_string(template).render(
            ccbed_known_hosts=hostile, hostvars={"h1": {}}, inventory_hostname="h1"
        )
        assert shlex.split(text) == ["-o", f"UserKnownHostsFile={hostile}"]
