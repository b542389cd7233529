"""The event loop and the engine with many nodes in virtual time: three crashes, each recovered from by a spare.

CCBED_BENCH_SIMULATED (default 1024) says how many nodes; the reach is asserted where 4096 are simulated.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

from orchestrator.model.trial import World
from tests.sim import world

from . import table

NODES = int(os.environ.get("CCBED_BENCH_SIMULATED", "1024"))
FAULTS = 3
#: To reach with 4096 nodes.
LIMIT_S = 60.0


def test_three_crashes_among_many_nodes() -> None:
    names = [f"n{number}" for number in range(NODES + FAULTS)]
    crashes = (world.crash(NODES * (k + 1) // 4, f"f{k}", step=15 * (k + 1)) for k in range(FAULTS))
    trial = replace(world.trial(*crashes), world=World(nodes=NODES))
    hosts = dict.fromkeys(names, "here")
    bed, book, plan = world.bed(hosts), world.Memory(), world.plan(trial, hosts=hosts)
    nodes = {
        name: replace(node, role="node" if name in names[:NODES] else "spare") for name, node in plan.nodes.items()
    }
    plan = replace(plan, slots=tuple(names[:NODES]), spares=tuple(names[NODES:]), nodes=nodes)
    begin, cpu = time.monotonic(), time.process_time()
    world.loop(trial, plan, bed, book).run()
    took, cpu = time.monotonic() - begin, time.process_time() - cpu
    print(
        f"\n{NODES} nodes, {FAULTS} faults: {took:.1f} s, CPU time {cpu:.1f} s, {len(book.events)} events; "
        f"load {table.machine()['load']}; to reach with 4096: {LIMIT_S:g} s"
    )
    assert book.events[-1].value["outcome"] == "finished"
    assert len(world.names(book, "recovery.decided")) == FAULTS
    assert NODES != 4096 or took < LIMIT_S
