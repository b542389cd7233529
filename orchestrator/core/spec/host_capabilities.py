"""What the inventory lets be done to a host as a whole: pure, from the argv that it gives."""

from __future__ import annotations

from ...model.bed import BedSpec, HostSpec

#: Capability -> the variable of the inventory that offers it.
VARIABLES = {
    "power-off": "ccbed_power",
    "cut-link": "ccbed_switch_port",
    "stop-ssh": "ccbed_ssh_control",
    "stop-engine": "ccbed_engine_control",
}


def of_bed(bed: BedSpec) -> frozenset[str]:
    """The capabilities of every node of a bed: on an emulated fabric each has a port of the switch to itself."""
    return frozenset({"own-link", "cut-link"}) if bed.fabric else frozenset()


def of(host: HostSpec | None) -> frozenset[str]:
    """The capabilities that come with a host's spec, beside those of the provider.

    That a host is gone can be seen only of one that is reached over a network.
    """
    if host is None:
        return frozenset()
    engine = {"stop-engine"} if host.engine_control else set()
    if host.connection == "local":
        return frozenset(engine)
    given = {"power-off": host.power, "cut-link": host.switch_port, "stop-ssh": host.ssh_control}
    return frozenset(engine | {name for name, control in given.items() if control})
