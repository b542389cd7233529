"""The payloads of all events and commands, by idea. ``README.md`` beside this file lists them."""

from __future__ import annotations

from .checkpoint_events import *
from .collective_events import *
from .commands import *
from .commands import FaultAct, FaultHeal, NodeApply, NodeKill
from .fault_events import *
from .gang_events import *
from .gang_events import GangStalled
from .nodes import *
from .nodes import NodeExit, NodeSilent
from .ranks import *
from .ranks import RankExit
from .run_events import *

#: Observations from which recovery may start. The outcome of our own injection is not among them.
DETECTORS = (NodeExit, RankExit, NodeSilent, GangStalled)
#: The keeper of a host performs these, an agent all others.
KEEPER_COMMANDS = (NodeApply, NodeKill, FaultAct, FaultHeal)
