"""What an inventory hands to ssh, read as ssh reads it; what ccbed's own connection cannot keep to is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.bed import nodes_from_inventory
from orchestrator.core.inventory import parse_inventory, ssh_options
from orchestrator.model.bed import HostSpec
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
    expected = HostSpec(name="h1", address="h1", user="ann", ssh={"proxycommand": ("nc -x %% %r %h %p",)})
    assert destinations.resolve(expected, config)[1] == "nc -x % ann h1 2022"
    assert destinations.resolve(HostSpec(name="h1", address="h1", ssh={"proxycommand": ("none",)}), config)[1] == ""
