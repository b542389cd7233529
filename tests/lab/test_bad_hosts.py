"""Hosts that cannot be used, as a new user meets them: a line for each, all at once, with the fix; nothing half done, in seconds."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
import yaml

from orchestrator.model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS, EXIT_USAGE

from . import layout, machines, processes
from .desk import HOSTS, PLAYED_S, Desk, both, key

pytestmark = pytest.mark.lab


# --- not let in -------------------------------------------------------------------------------------------------------


def test_a_key_that_no_host_takes(desk: Desk, tmp_path: Path) -> None:
    inventory = desk.inventory(ansible_ssh_private_key_file=str(key(tmp_path)))
    both(desk, inventory, "add the public key to authorized_keys of root there")


def test_a_key_that_is_not_there(desk: Desk, tmp_path: Path) -> None:
    inventory = desk.inventory(ansible_ssh_private_key_file=str(tmp_path / "none"))
    both(desk, inventory, f"no key file {tmp_path / 'none'}; set ansible_ssh_private_key_file")


def test_host_keys_that_are_not_known_are_accepted_as_the_message_says(desk: Desk, tmp_path: Path) -> None:
    inventory = desk.inventory(**desk.known(tmp_path / "known"))
    both(desk, inventory, "if it is the right one: ssh-keyscan -p 22 198.18.")
    output = desk.ccbed("doctor", inventory).text
    for line in output.splitlines():
        if "ssh-keyscan" in line:
            command = line.split("if it is the right one: ")[1].split(", or set")[0]
            subprocess.run(command, shell=True, check=True, timeout=900, stderr=subprocess.DEVNULL)
    assert desk.ccbed("doctor", inventory).code == EXIT_PASS


def test_a_host_key_that_has_changed(desk: Desk, tmp_path: Path) -> None:
    known = tmp_path / "known"
    shutil.copy(desk.lab.known_hosts, known)
    other = key(tmp_path).with_suffix(".pub").read_text().split()[1]
    address = desk.lab.host("h2").address
    kept = [line for line in known.read_text().splitlines() if address not in line.split()[0].split(",")]
    known.write_text("\n".join([*kept, f"{address} ssh-ed25519 {other}"]) + "\n")
    both(desk, desk.inventory(**desk.known(known)), f"ssh-keygen -R '{address}' -f {known}", ("h2",), PLAYED_S)


def test_a_user_who_is_not_there(desk: Desk) -> None:
    inventory = desk.inventory({"h3": {"ansible_user": "nobody-here"}})
    both(desk, inventory, "or set ansible_user", ("h3",), PLAYED_S)


# --- not there --------------------------------------------------------------------------------------------------------


def test_a_host_without_power_before_and_after_preparation(desk: Desk) -> None:
    inventory = desk.inventory()
    with desk.off("h2"):
        first = desk.ccbed("up", inventory, within_s=PLAYED_S)
        assert first.code == EXIT_INFRASTRUCTURE
        first.assert_every_host("check the host's power", ("h2",))
        assert "h1 h3 are ready and kept; to continue: ccbed up" in first.text
        second = desk.ccbed("up", inventory)
        second.assert_every_host("check the host's power", ("h2",))
        desk.nothing_there(("h1", "h3"))


def test_a_host_without_sshd(desk: Desk) -> None:
    inventory = desk.inventory()
    machines.service(processes.first(desk.lab)["h2"], "sshd", "stop")
    try:
        both(desk, inventory, "no sshd listens on port 22; start it, or set ansible_port", ("h2",), PLAYED_S)
    finally:
        machines.service(processes.first(desk.lab)["h2"], "sshd", "start")


def test_a_bed_of_which_one_host_is_away(desk: Desk) -> None:
    """Every verb says so in seconds; what can be ended is ended; the rest is ended once the host is back."""
    inventory = desk.inventory()
    desk.up(inventory)
    with desk.off("h2"):
        status = desk.ccbed("status")
        assert status.code == EXIT_INFRASTRUCTURE
        assert "n1    node   unreachable" in status.text
        assert status.text.count("check the host's power") == 1
        assert "n0    node   ready" in status.text
        for args in (("up", inventory), ("run", "dp-ring", "--nodes", "3", "--runs-dir", desk.folder / "runs")):
            refused = desk.ccbed(*args)
            assert refused.code == EXIT_INFRASTRUCTURE
            refused.assert_every_host("check the host's power", ("h2",))
        down = desk.ccbed("down", "bad")
        assert down.code == EXIT_INFRASTRUCTURE
        down.assert_every_host("check the host's power", ("h2",))
        assert "h1 h3 ended; once the host is back: ccbed down bad" in down.text
        assert desk.containers("h1") == desk.containers("h3") == []
    assert desk.containers("h2") != []
    assert desk.ccbed("down", "bad").code == EXIT_PASS
    desk.nothing_there()


def test_a_host_that_never_comes_back_is_given_up(desk: Desk) -> None:
    desk.up(desk.inventory())
    with desk.off("h2"):
        down = desk.ccbed("down", "bad", "--abandon")
        assert down.code == EXIT_PASS, down.text
        assert "warning: h2: abandoned" in down.text
        desk.nothing_there(("h1", "h3"))
    second = desk.up(desk.inventory())
    assert "4 of 4 ready" in second.text, "what was left there is replaced"


def test_two_hosts_with_one_address(desk: Desk) -> None:
    inventory = desk.inventory({"h2": {"ansible_host": desk.lab.host("h1").address}})
    for verb in ("doctor", "up"):
        output = desk.ccbed(verb, inventory)
        assert output.code == EXIT_USAGE
        assert (
            f"hosts.h2.ansible_host: h2 and h1 are the same host ({desk.lab.host('h1').address} port 22)" in output.text
        )


def test_two_addresses_of_one_host(desk: Desk, tmp_path: Path) -> None:
    """The inventory looks right; what is found at its addresses is not."""
    second, known = "198.18.0.200", tmp_path / "known"
    first = desk.lab.host("h1").address
    keys = [line for line in desk.lab.known_hosts.read_text().splitlines() if first in line.split()[0]]
    known.write_text(desk.lab.known_hosts.read_text() + "".join(f"{second} {line.split(' ', 1)[1]}\n" for line in keys))
    desk.inside("h1", "ip", "address", "add", f"{second}/24", "dev", "eth0")
    pid = "/run/second.pid"
    server = [
        "/usr/sbin/sshd",
        "-f",
        f"{layout.INSIDE}/sshd_config",
        "-o",
        f"ListenAddress={second}",
        "-o",
        f"PidFile={pid}",
    ]
    try:
        desk.inside("h1", *server)
        inventory = desk.inventory({"h2": {"ansible_host": second}}, **desk.known(known))
        doctor = desk.ccbed("doctor", inventory)
        assert doctor.code == EXIT_INFRASTRUCTURE, doctor.text
        assert "lacks  h2: host: is the same machine as h1" in doctor.text, doctor.text
        up = desk.ccbed("up", inventory, within_s=PLAYED_S)
        assert up.code == EXIT_USAGE, up.text
        up.assert_every_host("is the same machine as h1, which has /var/lib/ccbed/bad already", ("h2",))
        assert "next: set ansible_host of each to its own address" in up.text
        desk.nothing_there()
    finally:
        desk.inside("h1", "sh", "-c", f"[ ! -e {pid} ] || kill $(cat {pid})")
        desk.inside("h1", "ip", "address", "del", f"{second}/24", "dev", "eth0")


def test_each_host_with_something_else_wrong_is_told_at_once(desk: Desk, tmp_path: Path) -> None:
    inventory = desk.inventory(
        {
            "h1": {"ansible_ssh_private_key_file": str(key(tmp_path))},
            "h2": {"ansible_host": "198.18.0.99"},
            "h3": {"ccbed_image": "nowhere/none:1"},
        }
    )
    up = desk.ccbed("up", inventory, within_s=PLAYED_S)
    assert up.code == EXIT_INFRASTRUCTURE, up.text
    up.assert_every_host("")
    wanted = (
        "add the public key to authorized_keys",
        "cannot be reached",
        "is missing on the host and on the controller",
    )
    assert all(words in line for words, line in zip(wanted, up.errors, strict=True)), up.text
    assert "to continue: ccbed up" in up.text
    desk.nothing_there()


# --- in the middle, and others ----------------------------------------------------------------------------------------


def test_a_host_that_is_lost_in_the_middle_of_up_leaves_the_others_and_up_goes_on_afterwards(desk: Desk) -> None:
    inventory = desk.inventory()
    desk.up(inventory)
    assert desk.ccbed("down", "bad").code == EXIT_PASS
    killer = threading.Thread(target=cut, args=(desk, "h2"))
    killer.start()
    output = desk.ccbed("up", inventory, within_s=PLAYED_S)
    killer.join()
    assert output.code == EXIT_INFRASTRUCTURE, output.text
    assert [line.split(":")[0] for line in output.errors] == ["node n1"], output.text
    assert "its host h2 was lost" in output.text
    assert "next: to continue: ccbed up" in output.text
    desk.on("h2")
    second = desk.up(inventory)
    assert "plan: 1 to create" in second.text, "the others were kept"
    assert "4 of 4 ready" in second.text


def cut(desk: Desk, host: str) -> None:
    """Without power as soon as a container is there."""
    until = time.monotonic() + 600
    while time.monotonic() < until and not desk.containers(host):
        time.sleep(0.05)
    machines.power_off(desk.lab, desk.lab.host(host))


def test_a_bed_of_another_state_directory_is_refused_by_its_owners_name(desk: Desk) -> None:
    inventory = desk.inventory()
    desk.up(inventory)
    other = desk.elsewhere()
    theirs = other.inventory()
    for verb in ("up", "down"):
        output = other.ccbed(verb, theirs, within_s=PLAYED_S)
        assert output.code == EXIT_USAGE, output.text
        output.assert_every_host(f":{desk.folder / 'state' / 'beds' / 'bad'}")
        assert "to end it by force: ccbed down" in output.text
    assert "nothing to change, 4 of 4 ready" in desk.ccbed("up", inventory).text
    assert other.ccbed("down", theirs, "--force").code == EXIT_PASS
    assert desk.containers("h1") == []


def test_reset_leaves_what_is_anothers_alone_though_its_keepers_are_dead(desk: Desk) -> None:
    inventory = desk.inventory()
    desk.up(inventory)
    for host in HOSTS:
        label = desk.inside(host, "cat", "/var/lib/ccbed/bad/keeper/keeper.json")
        desk.inside(host, "kill", "-9", str(yaml.safe_load(label)["pid"]))
    other = desk.elsewhere()
    output = other.ccbed("down", other.inventory(), "--reset", within_s=PLAYED_S)
    assert output.code == EXIT_USAGE, output.text
    output.assert_every_host(f":{desk.folder / 'state' / 'beds' / 'bad'}")
    assert "--reset --force" in output.text
    assert "4 of 4 ready" in desk.up(inventory).text, "the containers went on"
    forced = other.ccbed("down", other.inventory(), "--reset", "--force", within_s=PLAYED_S)
    assert forced.code == EXIT_PASS, forced.text
    for host in HOSTS:
        assert desk.containers(host) == []
        assert "/var/lib/ccbed/bad" not in desk.inside(host, "ps", "-eo", "args"), "no host agent is left either"


def test_a_host_that_was_installed_anew_is_prepared_again(desk: Desk) -> None:
    inventory = desk.inventory()
    desk.up(inventory)
    assert desk.ccbed("down", "bad").code == EXIT_PASS
    desk.inside("h2", "rm", "-rf", "/var/lib/ccbed/bad")  # the last helper there may be removing its archive as well
    output = desk.up(inventory)
    assert "warning: h2: the stamp of its preparation is missing" in output.text
    assert "prepare     h2 ready" in output.text


def test_a_directory_that_is_not_shared_is_told_and_what_needs_it_is_refused(desk: Desk) -> None:
    """n0 and n1 are on h1, n2 is on h2, n3 and the spare are on h3."""
    inventory = desk.inventory({"h1": {"ccbed_nodes": 2}})
    desk.inside("h2", "mount", "-t", "tmpfs", "tmpfs", layout.SHARED)
    try:
        output = desk.up(inventory)
        assert f"{layout.SHARED}: h2 does not see what h1 writes there" in output.text
        refused = desk.ccbed(*trial(desk, nodes=3))
        assert refused.code == EXIT_USAGE, refused.text
        assert "(n0 n1 n2) share" in refused.text
        assert "h2 does not see what h1 writes there: mount the same file system there on their hosts" in refused.text
        assert not list((desk.folder / "runs").glob("*")), (
            "nothing was run before it was refused, no reference run either"
        )
        elsewhere = desk.ccbed(*trial(desk, nodes=2), within_s=60)
        assert elsewhere.code == EXIT_PASS, elsewhere.text
        assert "n1 lost: spare" in elsewhere.text
        assert desk.ccbed("down", "bad").code == EXIT_PASS
        desk.up(inventory)
    finally:
        desk.inside("h2", "umount", layout.SHARED)
    late = desk.ccbed(*trial(desk, nodes=3))
    assert late.code == EXIT_USAGE, late.text
    assert "the container of n2 has another directory there than its host" in late.text, (
        "it was started before the mount"
    )
    assert desk.ccbed("down", "bad").code == EXIT_PASS


def test_a_spare_on_a_host_that_does_not_share_the_directory_is_left_out(desk: Desk) -> None:
    inventory = desk.inventory({"h1": {"ccbed_nodes": 2}})
    desk.inside("h3", "mount", "-t", "tmpfs", "tmpfs", layout.SHARED)
    try:
        desk.up(inventory)
        output = desk.ccbed(*trial(desk, nodes=2), within_s=60)
        assert output.code == EXIT_PASS, output.text
        assert "spare n4: h3 does not see what h1 writes there" in output.text, output.text
        assert "n1 lost: restart" in output.text
    finally:
        desk.inside("h3", "umount", layout.SHARED)


def trial(desk: Desk, nodes: int) -> tuple[str | Path, ...]:
    return ("run", "dp-ring", "--nodes", str(nodes), "--fail-node", "1", "--runs-dir", desk.folder / "runs")
