"""What an inventory hands to ssh, read as ssh reads it; what ccbed's own connection cannot keep to is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.bed import nodes_from_inventory
from orchestrator.core.inventory import ansible_defaults, literal, parse_inventory, ssh_options
from orchestrator.model.bed import Host, HostSpec, Inventory
from orchestrator.model.errors import UsageError
from orchestrator.providers.ssh import destinations

INVENTORY = """
all:
  hosts:
    h1:
      ansible_host: 10.0.0.5
    h2:
      ansible_host: 10.0.0.5
      ansible_ssh_common_args: -J ann@bastion:2222
      ansible_ssh_extra_args: -i ~/.ssh/inside -p 2200 -l bob -J other
  vars:
    ccbed_provider: docker
"""


def bed(text: str) -> dict[str, HostSpec]:
    inventory = parse_inventory.parse(text, "lab.yml")
    return {
        host.name: host
        for host in nodes_from_inventory.assemble_bed(inventory, agent="a", state="/s", home="/away/ann").hosts
    }


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ("-o Port=1 -oPort=2 -p3", {"port": ("1",)}),
        ("-p 22 -l ann -i a -i b", {"port": ("22",), "user": ("ann",), "identityfile": ("a", "b")}),
        ("-4Cqp 2022", {"port": ("2022",)}),
        ("-o 'ProxyCommand=ssh -W %h:%p bastion'", {"proxycommand": ("ssh -W %h:%p bastion",)}),
        ("-o 'ProxyCommand ssh -o User=x bastion'", {"proxycommand": ("ssh -o User=x bastion",)}),
        ("-o ControlMaster=auto -o ServerAliveInterval=2 -v", {}),
        ("", {}),
    ],
)
def test_arguments_are_read_as_ssh_reads_them(arguments: str, result: dict[str, tuple[str, ...]]) -> None:
    assert ssh_options.read(arguments) == result


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-L 80:x:80 -o HostKeyAlias=x -o Port=1", "does not support -L, -o HostKeyAlias; remove it"),
        ("-p ssh", "port of ssh must be a whole number .got ssh."),
        ("-o Port", "-o Port has no value"),
        ("bastion", "'bastion' is no option of ssh"),
        ("-Z", "-Z is no option of ssh"),
        ("-J", "-J needs a value"),
        ("-o 'Port=1", "No closing quotation"),
    ],
)
def test_what_cannot_be_kept_to_is_named(arguments: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        ssh_options.read(arguments)


def test_every_variable_counts_in_the_order_of_ansible_and_what_ansible_says_itself_before() -> None:
    hosts = bed(INVENTORY)
    assert (hosts["h1"].port, hosts["h1"].user, hosts["h1"].ssh) == (22, "", {})
    second = hosts["h2"]
    assert (second.port, second.user, second.key) == (2200, "bob", "/away/ann/.ssh/inside")
    assert second.ssh["proxyjump"] == ("ann@bastion:2222",)
    assert bed(INVENTORY + "    ansible_port: 23\n")["h2"].port == 23


def test_one_address_behind_one_bastion_is_one_host() -> None:
    with pytest.raises(UsageError, match="h2 and h1 are the same host"):
        bed(INVENTORY.replace("-J ann@bastion:2222", "-C").replace("-p 2200 -l bob -J other", "-C"))


def test_a_mistake_is_told_once_at_its_place() -> None:
    wrong = INVENTORY + "    ansible_ssh_common_args: -o HostKeyAlias=x -o IdentityAgent=y\n"
    with pytest.raises(UsageError) as refused:
        bed(wrong)
    message = "ccbed's own connection does not support -o HostKeyAlias, -o IdentityAgent; remove it"
    assert refused.value.problems == (f"lab.yml:12: vars.ansible_ssh_common_args: {message}",)


def test_the_way_of_the_inventory_comes_before_that_of_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host h1\n  ProxyJump elsewhere\n  Port 2022\n")
    host = HostSpec(name="h1", connection="ssh", address="h1", user="ann")
    assert destinations.resolve(host, config)[1].endswith("-W h1:2022 -- elsewhere")
    jumping = HostSpec(
        name="h1", address="h1", user="ann", ssh={"proxyjump": ("a:1,bob@b:2",), "config": (str(config),)}
    )
    assert destinations.resolve(jumping)[1] == f"ssh -o BatchMode=yes -F {config} -W h1:2022 -J a:1 -p 2 -- bob@b"
    for hop, words in (
        ("[fd00::1]", "-- fd00::1"),
        ("bob@[fd00::1]:2", "-p 2 -- bob@fd00::1"),
        ("ssh://b:2", "-p 2 -- b"),
    ):
        six = HostSpec(name="h1", address="fd00::5", user="ann", ssh={"proxyjump": (hop,)})
        assert destinations.resolve(six, config)[1] == f"ssh -o BatchMode=yes -W '[fd00::5]:22' {words}"
    expected = HostSpec(name="h1", address="h1", user="ann", ssh={"proxycommand": ("nc -x %% %r %h %p",)})
    assert destinations.resolve(expected, config)[1] == "nc -x % ann h1 2022"
    assert destinations.resolve(HostSpec(name="h1", address="h1", ssh={"proxycommand": ("none",)}), config)[1] == ""


def configured(name: str, value: object, origin: str = "/a/ansible.cfg") -> ansible_defaults.Defaults:
    return ansible_defaults.Defaults(settings={name: {"name": name, "origin": origin, "value": value}})


def test_settings_of_ansible_concern_hosts_behind_ssh_that_lack_them_and_no_others() -> None:
    hosts = (
        Host(name="here", variables={"ansible_connection": "local"}),
        Host(name="job", variables={"ccbed_provider": "slurm"}),
        Host(name="set", variables={"ansible_port": 23}),
    )
    wrong = configured("port", "ssh")
    assert wrong.apply(Inventory(path="x", hosts=hosts)).hosts == hosts, "nothing uses the value"
    with pytest.raises(UsageError, match=r"ansible.cfg: port: must be a whole number"):
        wrong.apply(Inventory(path="x", hosts=(*hosts, Host(name="far", variables={}))))


@pytest.mark.parametrize(
    ("name", "value", "checking", "expected"),
    [
        ("ssh_args", "-o StrictHostKeyChecking=no", True, (True, "/a/ansible.cfg: ssh_args")),
        ("ssh_args", "-o StrictHostKeyChecking=yes", False, (False, "/a/ansible.cfg: ssh_args")),
        ("ssh_common_args", "-o StrictHostKeyChecking=yes", False, (True, "there")),
        ("ssh_extra_args", "-o StrictHostKeyChecking=accept-new", True, (True, "/a/ansible.cfg: ssh_extra_args")),
        ("ssh_args", "-C", False, (True, "there")),
        ("ssh_args", "-C", True, (False, "")),
    ],
)
def test_the_first_word_on_keys_of_new_hosts_counts_as_in_ansible(
    name: str, value: str, checking: bool, expected: tuple[bool, str]
) -> None:
    known = {"ansible_host_key_checking": checking, "ccbed_provider": "docker"}
    host = Host(name="h1", variables=known, positions={"ansible_host_key_checking": "there"})
    inventory = configured(name, value).apply(Inventory(path="x", hosts=(host,)))
    spec = nodes_from_inventory.assemble_bed(inventory, agent="a", state="/s", home="/h").hosts[0]
    assert (spec.first_contact, ansible_defaults.opening(inventory.hosts[0])) == expected


def test_options_that_concern_ssh_alone_are_left_to_it() -> None:
    words = "AddressFamily=inet ExitOnForwardFailure=yes HostbasedAuthentication=no CASignatureAlgorithms=x ClearAllForwardings=yes"
    assert ssh_options.read(*(f"-o {word}" for word in (*words.split(), "PermitLocalCommand=no"))) == {}
    with pytest.raises(ValueError, match="PermitLocalCommand"):
        ssh_options.read("-o PermitLocalCommand=yes")


def test_a_switch_is_written_as_ansible_accepts_it() -> None:
    read = literal.ANSIBLE["ansible_host_key_checking"]
    assert [read(word) for word in ("On", "y", "T", "yes", "TRUE", 1, True)] == [True] * 7
    assert [read(word) for word in ("off", "N", "f", "no", "False", 0, False)] == [False] * 7
    with pytest.raises(ValueError, match="true or false"):
        read("maybe")
