"""Which hosts are prepared again, and why; and what is said when that fails."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.core.bed import error_explanations, stale_hosts
from orchestrator.model.bed import BedSpec, ContainerSpec, HostSpec, NodeSpec
from orchestrator.prepare import facts, hosts, playbook_runs
from orchestrator.store import bed_files, shipped

IDS = {"ccbed/cpu:2.13.0": "sha256:aa"}


def host(name: str, **more: Any) -> HostSpec:
    given = {"connection": "ssh", "address": f"198.18.0.{name[1:]}", "user": "root", **more}
    return HostSpec(name=name, **given)


def node(number: int, **more: Any) -> NodeSpec:
    container = ContainerSpec(**{"image": "ccbed/cpu:2.13.0", **more})
    return NodeSpec(name=f"n{number}", host=f"h{number}", role="node", address="", hash="x", container=container)


def bed(**more: Any) -> BedSpec:
    given: dict[str, Any] = {
        "nodes": (node(1), node(2)),
        "hosts": (host("h1"), host("h2")),
        "hostdir": "/var/lib/ccbed/lab",
        **more,
    }
    return BedSpec(
        name="lab", provider="docker", inventory="lab.yml", workdir="/w", shared_dir="/w/shared", agent="a", **given
    )


def due(
    after: BedSpec, *, playbooks: str = "p", ids: dict[str, str] | None = None, firewall: str = ""
) -> dict[str, str]:
    known = {name: {"parts": parts, "firewall": firewall} for name, parts in stale_hosts.parts(bed(), "p", IDS).items()}
    result = stale_hosts.find_due(stale_hosts.parts(after, playbooks, IDS if ids is None else ids), known)
    return {item.host: item.reason for item in result}


def test_an_unchanged_host_is_left_alone() -> None:
    assert due(bed()) == {}


def test_a_new_host_is_prepared_and_the_others_are_not() -> None:
    more = bed(hosts=(host("h1"), host("h2"), host("h3")), nodes=(node(1), node(2), node(3)))
    assert due(more) == {"h3": "never prepared"}


def test_a_new_host_has_to_pass_the_firewalls_of_the_others() -> None:
    more = bed(hosts=(host("h1"), host("h2"), host("h3")), nodes=(node(1), node(2), node(3)))
    assert due(more, firewall="ufw")["h1"] == "other hosts to allow in its firewall"


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (bed(hostdir="/data"), "another directory"),
        (bed(hosts=(host("h1", engine="/run/other.sock"), host("h2"))), "another engine"),
        (bed(hosts=(host("h1", port=2222), host("h2"))), "another address, port or user"),
        (bed(nodes=(node(1, gpu_devices=("0",)), node(2))), "other GPUs"),
        (bed(nodes=(node(1, rdma=True), node(2))), "rdma has changed"),
        (bed(nodes=(node(1, image="other"), node(2))), "another image"),
    ],
)
def test_what_changes_is_the_reason(after: BedSpec, reason: str) -> None:
    assert reason in due(after)["h1"]


def test_an_image_built_anew_and_a_new_version_of_the_playbooks_count_for_all() -> None:
    assert due(bed(), ids={"ccbed/cpu:2.13.0": "sha256:bb"}) == dict.fromkeys(("h1", "h2"), "the image has changed")
    assert due(bed(), playbooks="q") == dict.fromkeys(("h1", "h2"), "ccbed's playbooks have changed")


def test_an_image_that_this_machine_does_not_have_any_more_changes_nothing() -> None:
    assert due(bed(), ids={}) == {}


def test_more_nodes_on_a_host_need_no_preparation() -> None:
    second = dataclasses.replace(node(1), name="n9")
    assert due(bed(nodes=(node(1), second, node(2)))) == {}


def test_the_fingerprint_is_of_the_host_alone() -> None:
    more = bed(hosts=(host("h1"), host("h2"), host("h3")), nodes=(node(1), node(2), node(3)))
    before, after = (stale_hosts.parts(item, "p", IDS) for item in (bed(), more))
    assert stale_hosts.fingerprint(before["h1"]) == stale_hosts.fingerprint(after["h1"])
    assert stale_hosts.fingerprint(before["h1"]) != stale_hosts.fingerprint(before["h2"])


def test_this_machine_is_not_prepared() -> None:
    assert stale_hosts.parts(bed(hosts=(HostSpec(name="h1"),)), "p", IDS) == {}


def test_what_is_known_is_kept_per_host_and_forgotten_as_a_whole(tmp_path: Path) -> None:
    bed_files.write_prepared(tmp_path, "lab", {"h1": {"python": "/usr/bin/python3"}})
    bed_files.write_prepared(tmp_path, "lab", {"h2": {"python": "/usr/bin/python3.11"}})
    assert hosts.python(tmp_path, bed()) == {"h1": "/usr/bin/python3", "h2": "/usr/bin/python3.11"}
    bed_files.forget_prepared(tmp_path, "lab")
    assert bed_files.read_prepared(tmp_path, "lab") == {}


def test_a_damaged_record_means_that_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "lab.json").write_text("{")
    assert bed_files.read_prepared(tmp_path, "lab") == {}


def test_the_hash_of_the_playbooks_covers_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hosts.playbooks_hash() == hosts.playbooks_hash()
    monkeypatch.setattr(shipped, "folder", lambda name: tmp_path)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "apt.sh").write_text("a")
    before = hosts.playbooks_hash()
    (tmp_path / "files" / "apt.sh").write_text("b")
    assert hosts.playbooks_hash() != before, "scripts count as well"
    monkeypatch.undo()
    names = {file.name for file in shipped.folder("playbooks").rglob("*.yml")}
    assert {"prepare.yml", "image.yml", "reset.yml", "hosts.yml"} <= names


@pytest.mark.parametrize(
    ("expected", "text", "fix"),
    [
        (
            "root@198.18.0.1: Permission denied (publickey).",
            "user root is not allowed to log in",
            "ssh-copy-id -p 22 root@198.18.0.1",
        ),
        (
            "Host key verification failed.",
            "its host key is not known",
            "ssh-keyscan -p 22 198.18.0.1 >> ~/.ssh/known_hosts",
        ),
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @",
            "its host key has changed",
            "ssh-keygen -R '198.18.0.1'",
        ),
        (
            "connect to host 198.18.0.1 port 22: Connection refused",
            "nothing listens on 198.18.0.1 port 22",
            "start sshd",
        ),
        ("Connection timed out during banner exchange", "198.18.0.1 does not answer on port 22", "ping 198.18.0.1"),
        ("ssh: Could not resolve hostname h1", "the name 198.18.0.1 is not known", "set ansible_host"),
        ("Missing sudo password", "user root may not become root", "ansible_become_password"),
        ("No package matching 'docker.io' is available", "No package matching", "docker_repository"),
        (
            "bash: line 1: /usr/bin/python3: No such file or directory",
            "there is no Python at python3",
            "install python3",
        ),
        ("SyntaxError: future feature annotations is not defined", "is too old", "ansible_python_interpreter"),
        (
            "write /x: No space left on device",
            "its disk is full (write /x: No space left on device)",
            "free space on h1: check df -h; docker system prune",
        ),
        ("something\n\nnew", "something new", "log in and check: ssh root@198.18.0.1"),
        ("", "it failed without a message", "log in and check"),
    ],
)
def test_what_ssh_and_ansible_say_is_told_plainly_with_what_to_do(expected: str, text: str, fix: str) -> None:
    explanation = error_explanations.explain_host(host("h1"), expected)
    assert text in explanation.text
    assert fix in explanation.fix


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"msg": "non-zero return code", "stderr": "no", "stdout": "x"}, "no"),
        ({"msg": "non-zero return code", "stderr": "Shared connection to h1 closed.", "stdout": "there"}, "there"),
        (
            {"msg": "Module result deserialization failed: no JSON", "module_stdout": "sudo: not found"},
            "sudo: not found",
        ),
        ({"msg": "All items", "results": [{"msg": "fine"}, {"failed": True, "msg": "bad"}]}, "bad"),
        ({"msg": "secret", "censored": "the output has been hidden"}, "failed; its output is secret"),
    ],
)
def test_the_reason_of_a_failed_task(result: dict[str, Any], expected: str) -> None:
    assert playbook_runs.reason(result) == expected


def test_what_fails_on_a_host_is_not_taken_for_a_way_to_it() -> None:
    explanation = error_explanations.explain_host(host("h1"), "cannot remove /x: Permission denied", reachable=True)
    assert explanation.text == "cannot remove /x: Permission denied"


def test_a_directory_with_files_of_others_is_not_the_beds(tmp_path: Path) -> None:
    (tmp_path / "prepared.json").touch()
    (tmp_path / "nodes").mkdir()
    assert facts._is_bed_directory(str(tmp_path))
    (tmp_path / "thesis.tex").touch()
    assert not facts._is_bed_directory(str(tmp_path))


def variable(name: str, **known: Any) -> Any:
    """A variable of the playbooks, as Ansible evaluates it."""
    import jinja2.nativetypes
    import yaml

    environment = jinja2.nativetypes.NativeEnvironment()
    environment.filters |= {
        "bool": bool, "quote": shlex.quote, "regex_replace": lambda text, pattern, new: re.sub(pattern, new, text),
    }  # fmt: skip
    environment.tests |= {"match": lambda text, pattern: re.match(pattern, text) is not None}
    variables = yaml.safe_load((shipped.folder("playbooks") / "vars.yml").read_text())
    return environment.from_string(variables[name]).render(**known)


def test_what_ansibles_configuration_says_is_not_hidden_by_variables_of_the_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ansible_runner

    rows = {
        "ssh_extra_args": {"value": "-o Port=7"},
        "INTERPRETER_PYTHON": {"value": "/opt/python3"},
        "port": {"value": 1},
    }
    given: dict[str, Any] = {}

    def run(**options: Any) -> SimpleNamespace:
        given.update(options)
        return SimpleNamespace(status="")

    monkeypatch.setattr(ansible_runner, "run", run)
    listener: Any = SimpleNamespace(handle_event=None, lines=[])
    wanted = playbook_runs.PlaybookRun(playbook="hosts", inventory="lab.yml", hosts=["h1"], configured=rows)
    playbook_runs._runner(wanted, tmp_path, [], listener, lambda: False)
    known = given["extravars"]
    of = {"inventory_hostname": "h1", "hostvars": {"h1": {}}}
    assert variable("ansible_ssh_extra_args", **known, **of).strip() == "-o Port=7"
    of["hostvars"] = {"h1": {"ansible_ssh_extra_args": "-C"}}
    assert variable("ansible_ssh_extra_args", **known, **of).strip() == "-C"
    assert variable("bed_python", **known) == "/opt/python3"
    assert variable("bed_python", **known, ansible_python_interpreter="/own") == "/own"
    assert variable("bed_python", **known, ansible_python_interpreter="auto_silent") == "/usr/bin/python3"
    assert variable("bed_python") == "/usr/bin/python3"


def test_the_toolkit_is_installed_only_where_no_container_would_end(tmp_path: Path) -> None:
    """The check is the first task, and changes nothing."""
    import yaml

    tasks = yaml.safe_load((shipped.folder("playbooks") / "tasks/nvidia.yml").read_text())
    assert tasks[0]["ansible.builtin.command"]["argv"][-1] == "check"
    assert tasks[0]["when"] == next(task["when"] for task in tasks if task["name"] == "toolkit's runtime")
    script = (shipped.folder("playbooks") / "files/nvidia-runtime.sh").read_text()
    for running, code in ((2, 1), (0, 0)):
        (tmp_path / "docker").write_text(f"#!/bin/sh\ncase $3 in *Running*) echo {running};; *) echo false;; esac\n")
        (tmp_path / "docker").chmod(0o755)
        done = subprocess.run(
            ["sh", "-ec", ". /dev/stdin", "sh", "check"], input=script, env={"PATH": f"{tmp_path}:/bin:/usr/bin"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert ("would end its 2 running containers" in done.stderr) == bool(code)


@pytest.mark.parametrize(("is_denied", "lacks"), [(False, "engine"), (True, "access")])
def test_docker_is_not_installed_in_place_of_podman(is_denied: bool, lacks: str) -> None:
    known = {
        "engine": {"version": "", "denied": is_denied}, "limits": {"nofile": 65536, "file": "", "memlock": -1},
        "gpus": {"devices": []}, "systemd": False, "lingers": True, "may_become_root": True, "firewall": "",
    }  # fmt: skip
    of_host = {"bed_facts": known, "bed_pythons": ["p"], "bed_gpus": False, "bed_directory_ready": True}
    assert variable("bed_lacks", bed_root=False, bed_engine="/var/run/docker.sock", **of_host) == [lacks]
    assert variable("bed_lacks", bed_root=False, bed_engine="/run/user/1000/podman.sock", **of_host) == []


def test_a_proxy_with_a_password_is_in_no_environment_of_a_task() -> None:
    used = {
        match
        for file in shipped.folder("playbooks").rglob("*.yml")
        for match in re.findall(r"environment: .*(bed_\w*proxies)", file.read_text())
    }
    assert used == {"bed_shown_proxies"}
    plain = {"https_proxy": "http://proxy:3128"}
    assert variable("bed_shown_proxies", bed_proxies=plain) == plain
    assert variable("bed_shown_proxies", bed_proxies={"https_proxy": "http://me:geheim@proxy:3128"}) == {}
