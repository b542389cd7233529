"""Ten forms of inventories that engineers have: what Ansible says of each is what ccbed uses, for its own connections as well.

The addresses are of the loopback, and no form is that of a real cluster.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.core.bed import nodes_from_inventory
from orchestrator.core.inventory import ssh_options
from orchestrator.model.errors import EXIT_INFRASTRUCTURE, UsageError
from orchestrator.prepare import ansible_listing, ansible_settings, read_inventory
from orchestrator.prepare.vault import Vault

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Form:
    """``hosts``: name -> user@address:port of ssh; ``limit``: a pattern of Ansible and the hosts that it names."""

    folder: str
    inventory: str
    hosts: dict[str, str]
    limit: tuple[str, str] = ("all", "")
    options: tuple[str, ...] = ()
    config: str = ""
    extra: dict[str, object] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return FOLDER / self.folder / self.inventory


FORMS = (
    Form(
        "kubespray", "inventory/mycluster/hosts.yaml",
        {f"node{n}": f"@127.0.41.1{n}:22" for n in (1, 2, 3)}, ("kube_node", "node2 node3"), config="ansible.cfg",
        extra={"first_contact": True, "known_hosts": "/dev/null"},
    ),
    Form(
        "deepops", "config/inventory",
        {"mgmt01": "ubuntu@127.0.42.20:22", "gpu01": "ubuntu@127.0.42.21:22", "gpu02": "ubuntu@127.0.42.22:22"},
        ("slurm-node:!gpu02", "gpu01"), config="ansible.cfg",
        extra={"first_contact": True, "python": "python3", "key": "/h/.ssh/id_rsa"},
    ),
    Form(
        "superpod", "hosts",
        {"slogin-01": "@127.0.48.11:22", "slogin-02": "@127.0.48.12:22"}
        | {f"dgx-0{n}": f"dgxuser@127.0.48.{n}:22" for n in (1, 2, 3, 4)}, ("su01", "dgx-01 dgx-02"),
    ),
    Form("awx", "inventory.ini", {f"trainer-{x}": f"awx@127.0.43.3{n}:2022" for n, x in ((1, "a"), (2, "b"))},
         extra={"key": "/h/.ssh/awx"}),
    Form("cloud", "ec2.sh", {f"ec2-127-0-44-4{n}.compute.example": f"ubuntu@127.0.44.4{n}:22" for n in (1, 2)}),
    Form("host_vars", "hosts.ini", {"gpu-a": "trainer@127.0.47.51:2201", "gpu-b": "trainer@127.0.47.52:22"}),
    Form("vault", "hosts.yml", {f"v{n}": f"sealed-user@127.0.40.{n}:22" for n in (1, 2)},
         options=("--vault-password-file", "password.txt")),
    Form("constructed", ".", {"a1": "u-h100@127.0.45.71:22", "a2": "u-h100@127.0.45.72:22", "c1": "u-none@127.0.45.73:22"},
         ("gpu_h100", "a1 a2")),
    Form("ini_ranges", "cluster.ini", {f"127.0.49.{n}": f"root@127.0.49.{n}:2222" for n in (1, 2, 3, 4)},
         extra={"has_become_password": True}),
    Form("jump", "fleet.yml", {"127.0.46.1": "ops@127.0.46.1:2222", "127.0.46.2": "ops@127.0.46.2:2223"},
         extra={"known_hosts": "/h/.ssh/known_fleet"}),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.folder)
def test_what_ansible_says_of_a_form_is_what_ccbed_uses(
    form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER / form.folder)
    if form.config:
        monkeypatch.setenv("ANSIBLE_CONFIG", form.config)
    vault = Vault(files=tuple(option for option in form.options if not option.startswith("--")))
    document = read_inventory.read(form.path, vault, tmp_path)
    spec = nodes_from_inventory.assemble_bed(document.inventory, agent="a" * 12, state="/state", home="/h")
    assert {host.name: f"{host.user}@{host.address}:{host.port}" for host in spec.hosts} == form.hosts
    assert spec.provider == "docker", "the provider follows from the connection"
    assert {name: getattr(spec.hosts[-1], name) for name in form.extra} == form.extra
    assert bool(document.settings) == bool(form.config)
    if form.limit[1]:
        assert ansible_listing.matching(form.path, form.limit[0], Vault()) == set(form.limit[1].split())
        assert not ansible_listing.matching(form.path, "no-such-group", Vault())
    if form.folder == "jump":
        assert ssh_options.first(spec.hosts[0].ssh, "proxyjump") == "jump@127.0.46.9:2022"
        assert [host.has_become_password for host in spec.hosts] == [False, True], "also in plain YAML"


@pytest.mark.lab
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.folder)
def test_each_verb_reads_each_form_and_names_the_hosts_that_it_cannot_reach(form: Form, tmp_path: Path) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "NO_COLOR": "1", "COLUMNS": "400"}
    environ |= {"ANSIBLE_CONFIG": form.config} if form.config else {}
    ccbed = str(Path(sys.executable).parent / "ccbed")
    for argv in (["doctor"], ["plan"], ["up", "--dry-run"]):
        command = [ccbed, *argv, form.inventory, *form.options]
        done = subprocess.run(
            command, cwd=FOLDER / form.folder, env=environ, capture_output=True, text=True, check=False, timeout=300
        )
        text = done.stdout + done.stderr
        assert done.returncode == EXIT_INFRASTRUCTURE, text
        assert all(host in text for host in form.hosts), text
        assert "provider docker: the hosts are behind SSH" in text, "it is said"
        assert ("warning: " in text) == ("ansible.cfg: host_key_checking: off" in text) == bool(form.config), text
        assert "Traceback" not in text
    assert not (tmp_path / "ccbed" / "beds").exists(), "nothing was changed"


def test_a_projects_ansible_cfg_that_names_programs_counts_once_its_user_has_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file, state = tmp_path / "ansible.cfg", tmp_path / "state"
    file.write_text("[defaults]\nremote_user = someone\n")
    assert ansible_settings.read(state).settings["remote_user"]["value"] == "someone"
    programs = (
        "[defaults]\nvault_password_file = ./p\nlibrary = ./l\n[ssh_connection]\nssh_args = -o ProxyCommand=./x\n"
    )
    file.write_text(programs + "ssh_executable = ./y\nconnection_plugins = ./z\n# callback_plugins = ./no\n")
    with pytest.raises(UsageError) as caught:
        ansible_settings.read(state)
    named = ("vault_password_file", "library", "ssh_args", "ssh_executable", "connection_plugins")
    assert [any(name in problem for problem in caught.value.problems) for name in named] == [True] * 5
    assert "ANSIBLE_CONFIG=ansible.cfg before the command" in caught.value.hint
    monkeypatch.setenv("ANSIBLE_CONFIG", "ansible.cfg")
    ansible_settings.read(state)
    monkeypatch.delenv("ANSIBLE_CONFIG")
    ansible_settings.read(state)
    file.write_text(programs)
    with pytest.raises(UsageError, match="Ansible may run programs"):
        ansible_settings.read(state)


@pytest.mark.parametrize(
    "text",
    [
        "home = .a", "HOME: .a", "log_path = x", "roles_path = r", "stdout_callback = mine", "remote_user = {{ lookup('pipe', 'x') }}",
        'ssh_args: -o ProxyCommand="./x"', "SSH_ARGS = -o ControlMaster=auto\n  -o ProxyCommand=./x", "ssh_args = -Fevil.cfg",
        "ssh_args = -4F evil", 'ssh_args = -o Proxy""Command=./x', "ssh_executable: ./x", "ssh_args = -E log", "ssh_args = -A",
        "ssh_common_args = -o Hostname=x", "ssh_extra_args = -J x", "ssh_args = -o StrictHostKeyChecking=no",
        "ssh_args = -o UserKnownHostsFile=k", "ssh_args = -o ForwardAgent=yes", "ssh_args = x", "transport = local",
        "ssh_args = -o ControlPath={{x}}", "interpreter_python = ./p", "remote_user = a\n[DEFAULT]\nlibrary = l", "no section",
    ],
)  # fmt: skip
def test_nothing_of_ansible_runs_for_a_strangers_settings(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ansible_listing, "run", lambda *_, **__: pytest.fail("Ansible was run"))
    (tmp_path / "ansible.cfg").write_text(("" if text == "no section" else "[defaults]\n") + text + "\n")
    with pytest.raises(UsageError):
        ansible_settings.read(tmp_path / "state")


def test_harmless_settings_count_without_being_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ansible.cfg").write_text(
        "[defaults]\nRemote_User: ann ; note\nhost_key_checking = False\nstdout_callback = yaml\ninterpreter_python = auto_silent\n"
        "forks = 20\ninventory = ./hosts\nverbosity = 1\n[ssh_connection]\npipelining = True\n"
        "ssh_args = -C -o ControlMaster=auto -o ControlPersist=60s\n  -o 'ControlPath=~/.ssh/%%h-%%r' -o ForwardAgent=no\n"
    )
    settings = ansible_settings.read(tmp_path / "state").settings
    assert (settings["remote_user"]["value"], settings["host_key_checking"]["value"]) == ("ann", False)


def test_a_configuration_of_another_connection_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("h1\nh2 ansible_connection=winrm\n")
    with pytest.raises(UsageError, match="ccbed cannot connect by the plug-in winrm"):
        read_inventory.read(tmp_path / "hosts", Vault(), tmp_path)
    (tmp_path / "hosts").write_text("h1\n")
    monkeypatch.setenv("ANSIBLE_CONFIG", "ansible.cfg")
    (tmp_path / "ansible.cfg").write_text("[defaults]\ntransport = community.docker.docker\n")
    with pytest.raises(UsageError, match=r"ansible.cfg: default_transport: .* by the plug-in community.docker.docker"):
        read_inventory.read(tmp_path / "hosts", Vault(), tmp_path)


def test_a_mistake_of_a_hundred_hosts_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = "".join(f"    h{n}: {{ansible_host: 127.1.0.{n}, ansible_port: 70000}}\n" for n in range(100))
    (tmp_path / "lab.yml").write_text(f"all:\n  hosts:\n{lines}")
    with pytest.raises(UsageError) as caught:
        read_inventory.read(tmp_path / "lab.yml", Vault(), tmp_path)
    assert [problem.replace(f"{tmp_path}/", "") for problem in caught.value.problems] == [
        "lab.yml:3: hosts.h0.ansible_port: must be <= 65535 (got 70000); the same on 99 other hosts"
    ]
