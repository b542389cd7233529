"""What a host has, and what is said to lack."""

from __future__ import annotations

import ast
import copy
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.bed import doctor_rules
from orchestrator.model.bed import HostSpec
from orchestrator.prepare import doctor_survey, facts

from .test_preparation import bed, host, node

GIB = 1024**3
FINE: dict[str, Any] = {
    "python": [3, 11, 2],
    "pythons": {"/usr/bin/python3": [3, 11]},
    "user": "ops",
    "uid": 1000,
    "system": {"id": "debian", "family": "debian", "version": "12", "codename": "bookworm", "name": "Debian 12"},
    "boot": "b-1",
    "reached": ["198.18.0.1", "22"],
    "synchronised": True,
    "engine": {"socket": "/var/run/docker.sock", "exists": True, "version": "20.10.24", "error": "", "free": 50 * GIB},
    "images": {"ccbed/cpu:2.13.0": "sha256:aa"},
    "gpus": {},
    "infiniband": False,
    "workdir": {"path": "/var/lib/ccbed/lab", "there": True, "owner": 1000, "writable": True, "free": 72 * GIB},
    "shm": {"free": 24 * GIB, "size": 24 * GIB},
    "programs": ["docker"],
    "systemd": True,
    "lingers": True,
    "user_systemd": True,
}


def wrong(changes: dict[str, Any], local_image: str | None = "sha256:aa", **of_bed: Any) -> list[str]:
    result = copy.deepcopy(FINE)
    for path, value in changes.items():
        *way, last = path.split(".")
        inner = result
        for part in way:
            inner = inner[part]
        inner[last] = value
    looked = doctor_rules.HostSurvey(host=host("h1"), facts=result, clock_uncertainty_s=0.02)
    findings = doctor_rules.diagnose(bed(**of_bed), looked, local_image)
    return [
        f"{finding.outcome} {finding.name}: {finding.text}; {finding.fix}"
        for finding in findings
        if finding.outcome != "ok"
    ]


def test_a_host_that_has_everything_lacks_nothing() -> None:
    assert wrong({}) == []


@pytest.mark.parametrize(
    ("changes", "work"),
    [
        ({"workdir.there": False, "workdir.writable": False}, "create /var/lib/ccbed/lab"),
        ({"engine.version": "", "engine.denied": True}, "add ops to group docker"),
        ({"engine.version": "", "engine.error": "refused"}, "install Docker"),
        ({"firewall": "ufw"}, "open the firewall"),
        ({"limits": {"nofile": 1024, "file": ""}}, "raise the limit of open files"),
    ],
)
def test_what_up_does_as_root_fails_early_where_the_user_may_not_become_root(
    changes: dict[str, Any], work: str
) -> None:
    def of_sudo(may_become_root: bool) -> list[str]:
        return [line for line in wrong({**changes, "may_become_root": may_become_root}) if " sudo: " in line]

    (line,) = of_sudo(False)
    assert line.startswith(f"fail sudo: ops may not become root, and `ccbed up` must {work}; allow ops to use sudo")
    assert of_sudo(True) == []
    assert wrong({"may_become_root": False}) == [], "nothing is to be done as root"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"systemd": False, "lingers": False}, []),
        ({"lingers": False, "may_become_root": True}, []),
        (
            {"lingers": False},
            [
                (
                    "warn host agent unit: ops may not become root and does not linger: after a reboot, "
                    "only `ccbed up` starts the host agent; "
                    "sudo loginctl enable-linger ops"
                )
            ],
        ),
        (
            {"user_systemd": False},
            [
                (
                    "warn host agent unit: the systemd of user ops does not respond: after a reboot, "
                    "only `ccbed up` starts the host agent; "
                    "sudo systemctl restart user@1000"
                )
            ],
        ),
    ],
)
def test_a_host_on_which_no_unit_starts_the_keeper_is_a_note(changes: dict[str, Any], expected: list[str]) -> None:
    assert wrong({"may_become_root": False, **changes}) == expected


ENGINE = "engine: no engine responds at /var/run/docker.sock (refused)"
PODMAN = {"host": {"security": {"rootless": True}, "cgroupVersion": "v1", "cgroupControllers": []}}
GPU = {"devices": [{"index": "0", "uuid": "GPU-1", "name": "H200", "driver_version": "570"}], "smi": True}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"pythons": {"/usr/bin/python3": [3, 9]}}, "fail python: 3.9 is too old, 3.10 is needed; install python3.11"),
        ({"engine.version": "", "engine.error": "refused"}, f"fail {ENGINE}; sudo systemctl start docker"),
        ({"engine.version": "", "engine.error": "refused", "programs": []}, f"fail {ENGINE}; `ccbed up` installs Docker"),
        ({"engine.version": "", "engine.denied": True}, "fail engine: user ops may not use /var/run/docker.sock; sudo usermod"),
        ({"engine.version": "4.2.9", "engine.podman": PODMAN}, "fail engine: podman 4.2.9 without root is too old; upgrade podman to 4.3"),
        (
            {"engine.version": "4.3.1", "engine.podman": PODMAN, "engine.update": [404, "Not Found"]},
            "warn engine: podman 4.3.1 without root cannot inject slow-node, pause-node; to inject them, use Docker",
        ),
        ({"engine.version": "19.03.15"}, "fail engine: 19.03.15 is too old; upgrade Docker to 20.10 or newer"),
        ({"images": {"pytorch": ""}}, "warn image: pytorch is missing; `ccbed up` copies the controller"),
        ({"images": {"pytorch": "sha256:bb"}}, "warn image: pytorch differs from the controller"),
        ({"images": {"pytorch": ""}, "engine.free": GIB}, "fail image: pytorch must be copied, but only 1 GiB are free"),
        ({"workdir.owner": 0}, "fail directory: /var/lib/ccbed/lab does not belong to ops; sudo chown -R ops /var/lib/ccbed/lab"),
        ({"workdir.there": False, "workdir.writable": False}, "warn directory: ops cannot write /var/lib/ccbed/lab; `ccbed up`"),
        ({"workdir.free": 1024**2}, "fail disk: 1 MiB free for /var/lib/ccbed/lab, 256 MiB needed; free space"),
        ({"shm.free": 0}, "fail shm: 0 B free in /dev/shm, 64 MiB needed; free space in /dev/shm"),
        ({"synchronised": False}, "warn time: the clock is not synchronised; start chrony"),
    ],
)  # fmt: skip
def test_what_lacks_is_told_with_the_fix(changes: dict[str, Any], expected: str) -> None:
    result = wrong(changes)
    assert len(result) == 1
    assert result[0].startswith(expected)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ({"devices": [], "smi": False}, "fail gpus: none: nvidia-smi is not installed; install the NVIDIA driver"),
        (
            {
                "devices": [],
                "smi": True,
                "problem": "exit code 18: Failed to initialize NVML: Driver/library version mismatch",
            },
            "fail gpus: nvidia-smi lists 0 and fails (exit code 18: Failed to initialize NVML: Driver/library version mismatch); ",
        ),
        (
            {**GPU, "problem": "exit code 15: Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost."},
            "fail gpus: nvidia-smi lists 1 and fails (exit code 15: Unable to determine the device handle for GPU0000:3B:00.0",
        ),
        (
            {**GPU, "toolkit": "", "hook": False},
            "fail gpus: 1, but no NVIDIA container toolkit; install nvidia-container-toolkit",
        ),
    ],
)
def test_gpus_that_are_asked_for_must_be_there(gpus: dict[str, Any], expected: str) -> None:
    import dataclasses

    wanting = dataclasses.replace(node(1), gpus=1)
    assert wrong({"gpus": gpus}, nodes=(wanting,))[0].startswith(expected)
    assert wrong({"gpus": {**GPU, "toolkit": "1.17"}}, nodes=(wanting,)) == []
    twice = dataclasses.replace(wanting, name="n2")
    assert "1 available, 2 required" in wrong({"gpus": {**GPU, "toolkit": "1.17"}}, nodes=(wanting, twice))[0]


def test_an_image_that_is_nowhere_lacks_unless_a_registry_may_have_it() -> None:
    assert wrong({"images": {"ccbed/cpu:2.13.0": ""}}, local_image="")[0].startswith(
        "fail image: ccbed/cpu:2.13.0 is missing on the host and on the controller"
    )
    assert wrong({"images": {"pytorch/pytorch": ""}}, local_image="")[0].startswith(
        "warn image: pytorch/pytorch is missing"
    )


def test_a_clock_that_is_off_by_more_than_can_be_measured_is_told() -> None:
    looked = doctor_rules.HostSurvey(host=host("h1"), facts=FINE, clock_offset_s=-3.2, clock_uncertainty_s=0.1)
    message = [finding.text for finding in doctor_rules.diagnose(bed(), looked, None) if finding.outcome == "warn"]
    assert message == ["-3.2 s from the controller's"]


def test_two_names_of_one_machine_are_found_out() -> None:
    first, second = (doctor_rules.HostSurvey(host=host(name), facts=FINE) for name in ("h1", "h2"))
    other = doctor_rules.HostSurvey(host=host("h3"), facts={**FINE, "boot": "b-2"})
    problems = doctor_rules.find_same_machine((first, second, other))
    assert list(problems) == ["h2"]
    assert problems["h2"].text == "is the same machine as h1 (198.18.0.1 port 22)"


@pytest.mark.parametrize(("boot", "id", "doubled"), [("b-1", 7, ["h2"]), ("b-1", 8, []), ("b-2", 7, [])])
def test_two_addresses_of_one_machine_are_found_out_by_its_directory(boot: str, id: int, doubled: list[str]) -> None:
    """Namespaces of one machine have directories of their own; a network file system is the same on machines of other boots."""
    workdir = FINE["workdir"]
    first = doctor_rules.HostSurvey(host=host("h1"), facts={**FINE, "workdir": {**workdir, "id": [1, 7]}})
    more = {"boot": boot, "reached": ["198.18.0.9", "22"], "workdir": {**workdir, "id": [1, id]}}
    second = doctor_rules.HostSurvey(host=host("h2"), facts={**FINE, **more})
    problems = doctor_rules.find_same_machine((first, second))
    assert list(problems) == doubled
    assert all("/var/lib/ccbed/lab is the same directory on both" in item.text for item in problems.values())


def test_the_facts_can_be_read_by_an_old_interpreter() -> None:
    ast.parse(Path(facts.__file__).read_text(), feature_version=(3, 7))


def test_the_facts_of_this_machine(tmp_path: Path) -> None:
    requested = {"hostdir": str(tmp_path / "not" / "there"), "engine": str(tmp_path / "none.sock"), "image": "x"}
    text = f"{Path(facts.__file__).read_text()}\nmain({json.dumps(json.dumps(requested))})\n"
    done = subprocess.run([sys.executable, "-"], input=text, capture_output=True, text=True, timeout=900)
    facts_ = json.loads(done.stdout)
    assert facts_["asked"] == requested
    assert facts_["python"] == list(sys.version_info[:3])
    assert facts_["workdir"]["above"] == str(tmp_path)
    assert facts_["engine"]["error"] == "No such file or directory"
    assert facts_["images"] == {"x": ""}
    assert set(FINE) <= set(facts_)


def test_an_engine_without_permission_is_told_apart_from_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_engine: str, _path: str) -> tuple[int, Any]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(facts, "ask", denied)
    result = facts.facts({"hostdir": "/tmp"})["engine"]
    assert result["denied"] and result["error"] == "Permission denied"


@pytest.mark.parametrize("answer", [(200, []), (200, None), (403, {"message": "forbidden"}), (200, "OK")])
def test_what_answers_like_no_engine_is_none(monkeypatch: pytest.MonkeyPatch, answer: tuple[int, Any]) -> None:
    monkeypatch.setattr(facts, "ask", lambda engine, path: answer)
    result = facts.facts({"hostdir": "/tmp", "image": "x"})
    assert result["engine"]["version"] == ""
    assert result["engine"]["error"].startswith("no response of an engine to /version: ")
    assert result["images"] == {"x": ""}


def test_this_machine_is_examined_without_a_connection(tmp_path: Path) -> None:
    local = bed(hosts=(HostSpec(name="h1", engine="/nowhere.sock"),), nodes=(node(1),), hostdir=str(tmp_path))
    result = doctor_survey.examine(local)
    assert [item.name for item in result["h1"]] == ["python", "engine", "disk", "shm"]
    assert result["h1"][1].outcome == "fail"


def test_a_directory_of_this_machine_is_created_by_the_user_and_not_by_up(tmp_path: Path) -> None:
    unwritable = {**FINE["workdir"], "there": False, "writable": False}
    looked = doctor_rules.HostSurvey(host=HostSpec(name="h1"), facts={**FINE, "workdir": unwritable})
    process_bed = replace(bed(), provider="process")
    findings = [item for item in doctor_rules.diagnose(process_bed, looked, None) if item.outcome != "ok"]
    assert [(item.outcome, item.name) for item in findings] == [("fail", "directory")]
    assert "sudo mkdir -p /var/lib/ccbed/lab" in findings[0].fix


@pytest.mark.parametrize(("provider", "doubled"), [("process", []), ("docker", ["h2"])])
def test_hosts_of_a_process_bed_are_this_machine_and_no_mistake(
    provider: Any, doubled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_survey, "_interpreter", lambda bed: ())
    hosts = (HostSpec(name="h1"), HostSpec(name="h2"))
    local = replace(bed(hosts=hosts, hostdir="/tmp"), provider=provider)
    findings = doctor_survey.examine(local)
    assert [host for host, listed in findings.items() if any(item.name == "host" for item in listed)] == doubled


def test_a_host_that_is_not_reached_is_told_in_one_line() -> None:
    away = bed(hosts=(host("h1", address="127.0.0.1", port=1),), nodes=(node(1),))
    result = doctor_survey.examine(away)
    assert [item.name for item in result["h1"]] == ["ssh"]
    assert "127.0.0.1:1 refuses connections: no sshd listens on port 1; start it" in result["h1"][0].text


@pytest.mark.parametrize(
    ("state", "text", "fix"),
    [
        (
            {"engine.error": "refused"},
            "no engine responds at {} (refused)",
            "systemctl --user enable --now podman.socket, or set ccbed_engine to its socket",
        ),
        (
            {"engine.denied": True},
            "user ops may not use {}",
            "set ccbed_engine to the socket of podman without root: systemctl --user enable --now podman.socket",
        ),
    ],
)
def test_podman_is_not_replaced_by_docker_and_needs_no_group(state: dict[str, Any], text: str, fix: str) -> None:
    socket = "/run/podman.sock"
    changes = {"engine.version": "", "engine.socket": socket, "may_become_root": False, **state}
    assert wrong(changes) == [f"fail engine: {text.format(socket)}; {fix}"]
