"""Every kind of inventory that Ansible can list: what it becomes, and what is said about the wrong ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.core.inventory import parse_listing, variable_positions
from orchestrator.model.bed import Inventory
from orchestrator.model.errors import UsageError
from orchestrator.prepare import ansible_listing, read_inventory
from orchestrator.prepare.vault import Vault

BIN = Path(sys.executable).parent


@pytest.fixture(autouse=True)
def _no_vault(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANSIBLE_VAULT_PASSWORD_FILE", "ANSIBLE_VAULT_IDENTITY_LIST", "ANSIBLE_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def lay(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def read(path: Path, vault: Vault | None = None) -> Inventory:
    return read_inventory.read(path, vault or Vault(), path.parent / "state").inventory


def wrong(path: Path, vault: Vault | None = None) -> list[str]:
    with pytest.raises(UsageError) as caught:
        read(path, vault)
    return [problem.replace(f"{path.parent}/", "") for problem in caught.value.problems]


def encrypt(root: Path, text: str, name: str) -> str:
    argv = [
        str(BIN / "ansible-vault"),
        "encrypt_string",
        "--vault-password-file",
        str(root / "pw"),
        text,
        "--name",
        name,
    ]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=900).stdout


INI = """
[gpu]
h[1:3] ccbed_gpus=2 ccbed_rdma=true
[gpu:vars]
ccbed_provider=docker
ansible_user=root
ansible_ssh_pass=sesame
"""


def test_ini_with_ranges_is_read_and_no_password_is_kept(tmp_path: Path) -> None:
    result = read(lay(tmp_path, {"hosts.ini": INI}) / "hosts.ini")
    assert [host.name for host in result.hosts] == ["h1", "h2", "h3"]
    expected = {"ccbed_gpus": 2, "ccbed_rdma": True, "ccbed_provider": "docker", "ansible_user": "root"}
    assert result.hosts[1].variables == expected
    assert "sesame" not in repr(result)


def test_a_directory_with_variables_of_groups_and_hosts(tmp_path: Path) -> None:
    files = {
        "lab/hosts.yml": "gpu: {hosts: {h1: {}, h2: {}}}",
        "lab/group_vars/gpu.yml": "ccbed_gpus: 4\nccbed_provider: docker",
        "lab/host_vars/h2/main.yml": "ccbed_gpus: 8",
    }
    result = read(lay(tmp_path, files) / "lab")
    assert {host.name: host.variables["ccbed_gpus"] for host in result.hosts} == {"h1": 4, "h2": 8}
    assert result.hosts[1].positions["ccbed_gpus"].endswith("host_vars/h2/main.yml:1: ccbed_gpus")


def test_a_mistake_is_shown_in_the_file_that_holds_it_and_once(tmp_path: Path) -> None:
    files = {
        "lab.yml": "gpu:\n  hosts:\n    h[1:3]:\n    h4: {ccbed_gpu: 1}\n  vars:\n    ccbed_nodes: two\n",
        "group_vars/all.yml": "# ours\nccbed_gpus: -1\n",
        "host_vars/h2.yml": "ccbed_address: localhost\n",
    }
    assert wrong(lay(tmp_path, files) / "lab.yml") == [
        "group_vars/all.yml:2: ccbed_gpus: must be >= 0 (got -1)",
        "host_vars/h2.yml:1: ccbed_address: must be a numeric address such as 127.0.0.1 (got localhost)",
        "lab.yml:4: gpu.hosts.h4.ccbed_gpu: unknown variable; did you mean ccbed_gpus?",
        "lab.yml:6: gpu.vars.ccbed_nodes: must be a whole number (got two)",
    ]


def test_a_mistake_in_an_ini_file_is_shown_with_the_host(tmp_path: Path) -> None:
    text = INI.replace("gpus=2", "gpus=-1")
    assert wrong(lay(tmp_path, {"hosts.ini": text}) / "hosts.ini") == [
        "hosts.ini: hosts.h1.ccbed_gpus: must be >= 0 (got -1); the same on 2 other hosts"
    ]


def test_templates_are_filled_in_from_the_hosts_variables(tmp_path: Path) -> None:
    text = """
all:
  vars:
    ansible_connection: local
    ccbed_address: "{{ ansible_host }}"
    ccbed_gpus: "{{ per_node * 2 }}"
    ansible_ssh_private_key_file: "{{ inventory_dir }}/keys/{{ inventory_hostname }}"
  hosts:
    h1: {ansible_host: "10.0.0.{{ number }}", number: 7, per_node: 2}
"""
    result = read(lay(tmp_path, {"lab.yml": text}) / "lab.yml").hosts[0].variables
    assert (result["ccbed_address"], result["ccbed_gpus"]) == ("10.0.0.7", 4)
    assert result["ansible_ssh_private_key_file"] == f"{tmp_path}/keys/h1"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ nothing }}", "a template that cannot be rendered: 'nothing' is undefined; write the value"),
        ("{{ lookup('env', 'HOME') }}", "a template that cannot be rendered: 'lookup' is undefined; write the value"),
        ("{{ ccbed_image }}", "a template that refers to itself"),
    ],
)
def test_a_template_that_cannot_be_filled_in_is_refused(tmp_path: Path, template: str, expected: str) -> None:
    text = f'all: {{hosts: {{h1: {{ccbed_image: "{template}"}}}}}}'
    assert wrong(lay(tmp_path, {"lab.yml": text}) / "lab.yml") == [
        f"lab.yml:1: hosts.h1.ccbed_image: {expected} (got {template})"
    ]


def test_a_vault_is_opened_only_where_ccbed_needs_it(tmp_path: Path) -> None:
    lay(tmp_path, {"pw": "open"})
    hidden = encrypt(tmp_path, "sesame", "ansible_password") + encrypt(tmp_path, "8", "ccbed_gpus")
    lay(tmp_path, {"hosts": "[gpu]\nh1\n", "group_vars/gpu.yml": hidden})
    document = read_inventory.read(tmp_path / "hosts", Vault(files=(str(tmp_path / "pw"),)), tmp_path)
    assert document.inventory.hosts[0].variables == {"ccbed_gpus": 8}
    assert wrong(tmp_path / "hosts") == [f"group_vars/gpu.yml:8: ccbed_gpus: {parse_listing.ENCRYPTED}"]


def test_without_the_password_of_a_vault_there_is_one_error_however_many_values_it_has(tmp_path: Path) -> None:
    lay(tmp_path, {"pw": "open"})
    hidden = encrypt(tmp_path, "8", "ccbed_gpus") + encrypt(tmp_path, "x:y", "ccbed_image")
    lay(tmp_path, {"hosts": "[gpu]\nh1\nh2\n", "group_vars/gpu.yml": f"{hidden}ccbed_nodes: -1\n"})
    problems = wrong(tmp_path / "hosts")
    assert sum("there is no password for its vault" in problem for problem in problems) == 1
    assert len(problems) == 2, "other mistakes are named as well"


def test_a_password_to_become_root_is_known_to_be_there_and_not_read(tmp_path: Path) -> None:
    lay(tmp_path, {"pw": "open"})
    hidden = encrypt(tmp_path, "sesame", "ansible_become_password")
    lay(tmp_path, {"hosts": "[gpu]\nh1\n[other]\nh2\n", "group_vars/gpu.yml": hidden})
    h1, h2 = read_inventory.read(tmp_path / "hosts", Vault(), tmp_path).inventory.hosts
    assert (h1.has_become_password, h2.has_become_password) == (True, False)
    assert "sesame" not in str(h1)


def test_a_value_out_of_a_vault_is_in_no_error(tmp_path: Path) -> None:
    lay(tmp_path, {"pw": "open"})
    hidden = encrypt(tmp_path, "not-a-number", "ccbed_gpus")
    lay(tmp_path, {"hosts": "[gpu]\nh1\n", "group_vars/gpu.yml": hidden})
    result = wrong(tmp_path / "hosts", Vault(password="open"))
    assert result == ["group_vars/gpu.yml:1: ccbed_gpus: must be a whole number (got a value of the vault)"]


def test_an_encrypted_file_needs_the_password(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {"pw": "open", "other": "wrong", "hosts": "[gpu]\nh1\n", "group_vars/gpu.yml": "ccbed_workdir: here-it-is"},
    )
    argv = [str(BIN / "ansible-vault"), "encrypt", "--vault-password-file", str(tmp_path / "pw")]
    subprocess.run([*argv, str(tmp_path / "group_vars/gpu.yml")], capture_output=True, check=True, timeout=900)
    with pytest.raises(UsageError) as caught:
        read(tmp_path / "hosts")
    assert caught.value.problems == (f"{tmp_path}/hosts: is encrypted, and there is no password for its vault",)
    assert caught.value.hint.startswith("ANSIBLE_VAULT_PASSWORD_FILE=FILE "), "every verb takes it"
    assert wrong(tmp_path / "hosts", Vault(files=(str(tmp_path / "other"),))) == [
        "hosts: the password does not open the vault"
    ]
    assert wrong(tmp_path / "hosts", Vault(files=(str(tmp_path / "pw"),))) == [
        "hosts: hosts.h1.ccbed_workdir: must be an absolute path (got a value of the vault)"
    ]
    assert wrong(tmp_path / "hosts", Vault(files=(str(tmp_path / "none"),))) == [
        "none: the vault's password file cannot be read"
    ]


def test_a_dynamic_inventory_is_run(tmp_path: Path) -> None:
    listing = '{"gpu": {"hosts": ["h1"], "vars": {"ccbed_gpus": 2}}, "_meta": {"hostvars": {}}}'
    script = lay(tmp_path, {"cloud": f"#!/bin/sh\necho '{listing}'\n"}) / "cloud"
    script.chmod(0o755)
    assert [(host.name, host.variables) for host in read(script).hosts] == [("h1", {"ccbed_gpus": 2})]
    script.write_text("#!/bin/sh\necho no credentials >&2\nexit 3\n")
    assert wrong(script) == ["cloud: the inventory script failed: no credentials"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "hosts.ini",
            "h1 [\n",
            "hosts.ini: Failed to parse inventory: Expected key=value host variable assignment, got: [",
        ),
        (
            "lab.yml",
            "a: {{ b\n",
            'lab.yml:1: not valid YAML: a key must be a name or a number (a template needs quotes: "{{ name }}")',
        ),
        (
            "lab.yml",
            "g: {host: {'h[1:2]': {}}}",
            "lab.yml: g.host: a group has hosts, children and vars; did you mean hosts?",
        ),
        ("hosts.ini", "[empty]\n", "hosts.ini: no host; at least one is needed"),
        ("lab.yml", "g: {hosts: {'h[1:2]': {}}, vars: {a: 1, a: 2}}", "lab.yml:1: g.vars.a: appears twice"),
    ],
)
def test_a_broken_inventory_is_told_in_a_line(tmp_path: Path, name: str, text: str, expected: str) -> None:
    assert wrong(lay(tmp_path, {name: text}) / name) == [expected]


def test_without_ansible_a_plain_file_is_still_read_and_others_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    lay(tmp_path, {"plain.yml": "all: {hosts: {h1: {ansible_connection: local}}}", "hosts.ini": "h1\n"})
    assert [host.name for host in read(tmp_path / "plain.yml").hosts] == ["h1"]
    assert wrong(tmp_path / "hosts.ini") == [
        f"ansible-inventory is missing beside {tmp_path}/python".replace(f"{tmp_path}/", "")
    ]


def test_an_inventory_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ansible_listing, "LIST_S", 0.01)
    assert wrong(lay(tmp_path, {"hosts": "h1\n"}) / "hosts") == ["hosts: ansible-inventory did not end within 0 s"]


def test_the_order_of_hosts_is_that_of_the_groups() -> None:
    listing = {
        "_meta": {"hostvars": {"b": {}, "a": {}}},
        "all": {"children": ["ungrouped", "gpu"]},
        "gpu": {"hosts": ["b", "a"]},
    }
    result = parse_listing.parse(variable_positions.Listing(content=listing), parse_listing.SourceFiles(path="x"))
    assert [host.name for host in result.hosts] == ["b", "a"]


def test_programs_are_run_from_the_environment_of_this_interpreter() -> None:
    assert Path(ansible_listing.find("ansible-inventory")).parent == BIN
