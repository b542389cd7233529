"""slow-link: its commands for tc, and the proof from the kernel's output."""

from __future__ import annotations

import pytest

from orchestrator.faults import slow_link
from orchestrator.model.bed import LinkSpec
from orchestrator.node.oslayer import traffic_control
from orchestrator.node.oslayer.traffic_control import Lowered, Rates

LINK = LinkSpec(rate=145_000_000, burst=36_250)
QDISCS = '[{"kind":"tbf","handle":"1:","root":true,"options":{"rate":%d,"burst":36250,"lat":953600}}]'
CLASSES = """\
class tbf 1:1 parent 1: leaf 2:
class htb 2:1 root prio 0 rate 72500Kbit ceil 72500Kbit burst 36250b cburst 36250b
"""


def test_only_the_chosen_direction_is_lowered() -> None:
    lowered = Lowered(direction="out", rate=72_500_000)
    assert traffic_control.wanted_rates("out", LINK, lowered) == Rates(rate=72_500_000)
    assert traffic_control.wanted_rates("in", LINK, lowered) == Rates(rate=145_000_000)
    (line,) = traffic_control.lower_commands("eth0", "out", LINK, lowered)
    assert line.startswith("qdisc change dev eth0 root handle 1: tbf rate 72500000bit burst 36250 ")


@pytest.mark.parametrize(("direction", "end"), [("out", "dst"), ("in", "src")])
def test_the_traffic_with_one_peer_has_a_class_of_its_own(direction: str, end: str) -> None:
    lowered = Lowered(direction="both", rate=10_000_000, peer="10.77.0.3")
    lines = traffic_control.lower_commands("n1", direction, LINK, lowered)
    assert lines[0] == "qdisc replace dev n1 parent 1:1 handle 2: htb default 0"
    assert "rate 10000000bit" in lines[1]
    assert f"match ip {end} 10.77.0.3/32" in lines[2]


def test_the_proof_is_the_rate_that_the_kernel_shows() -> None:
    shown = traffic_control.shown_rates(QDISCS % 18_125_000, CLASSES)
    assert shown == Rates(rate=145_000_000, peer=72_500_000)
    lowered = Lowered(direction="out", rate=72_500_000, peer="10.77.0.3")
    assert traffic_control.is_same(shown, traffic_control.wanted_rates("out", LINK, lowered))
    assert not traffic_control.is_same(shown, traffic_control.wanted_rates("out", LINK, None)), "not healed"
    assert not traffic_control.is_same(Rates(rate=145_000_000), traffic_control.wanted_rates("out", LINK, lowered))
    assert traffic_control.shown_rates("", "") == Rates()


def test_healing_restores_the_rate_and_removes_the_class() -> None:
    queue, rate = traffic_control.restore_commands("eth0", LINK, Rates(rate=72_500_000, peer=10_000_000))
    assert queue == f"qdisc replace dev eth0 parent 1:1 bfifo limit {traffic_control.QUEUE_BYTES}"
    assert rate.startswith("qdisc change dev eth0 root handle 1: tbf rate 145000000bit ")
    assert traffic_control.restore_commands("eth0", LINK, Rates(rate=145_000_000)) == []
    assert traffic_control.restore_commands("eth0", LinkSpec(), Rates(rate=10**7)) == ["qdisc del dev eth0 root"]
    assert traffic_control.restore_commands("eth0", LinkSpec(), Rates()) == []


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"percent": 0}, "percent: must be from 1 to 99"),
        ({"percent": 100}, "percent: must be from 1 to 99"),
        ({"rate_mbit": 0.0}, "rate_mbit: must be from"),
        ({"direction": "up"}, "direction: must be out, in or both"),
    ],
)
def test_a_slow_link_that_is_none_is_rejected_by_name(wrong: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        slow_link.Params(**wrong)  # type: ignore[arg-type]
