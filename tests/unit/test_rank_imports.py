"""A rank uses the modules that its agent imported only if its payload has the same code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import orchestrator
from orchestrator.node.files import payloads
from orchestrator.providers import archive

PACKAGE = Path(orchestrator.__file__).parent
#: An agent, and for each payload what its rank does after the fork: is the module that of the agent, and which files are used?
PROGRAM = """
import json, os, sys
from pathlib import Path
from orchestrator.node import warm_up
warm_up.preload_rank_code()
before = sys.modules["orchestrator.rank.runtime.rank_main"]
for payload in sys.argv[1:]:
    if not os.fork():
        break
    os.wait()
else:
    os._exit(0)
sys.modules["orchestrator"].__path__.insert(0, payload + "/orchestrator")
warm_up.adopt_rank_code(payload)
from orchestrator.rank.runtime import interpreter, rank_main
from orchestrator.rank.reference_models import datasets
from orchestrator.workloads import script
interpreter.load_watcher(Path(payload, "orchestrator/rank/watcher"))
import _ccbed_watch.digest, _ccbed_watch.command
files = [module.__file__ for module in (rank_main, datasets, _ccbed_watch.digest, _ccbed_watch.command, script)]
print(json.dumps([rank_main is before, files]), flush=True)
"""
USED = (
    "rank/runtime/rank_main",
    "rank/reference_models/datasets",
    "rank/watcher/digest",
    "rank/watcher/command",
    "workloads/script",
)


def test_imported_modules_are_used_for_equal_code_only(tmp_path: Path) -> None:
    code = payloads.rank_code(PACKAGE)
    without_hash = {name: content for name, content in code.items() if name != payloads.RANK_HASH}
    contents = (code, {**code, payloads.RANK_HASH: b"of other code"}, without_hash)
    stored = [payloads.put_payload(tmp_path, content) for content in contents]
    agent, _ = archive.write(tmp_path)
    command = [sys.executable, "-P", "-c", PROGRAM, *map(str, stored)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(agent)}, check=False)
    assert done.returncode == 0, done.stderr
    adopted, *others = [json.loads(line) for line in done.stdout.splitlines()]
    assert adopted[0] is True and [is_adopted for is_adopted, _ in others] == [False, False], done.stderr
    for payload, (_, files) in zip(stored, (adopted, *others), strict=True):
        assert files == [str(payload / "orchestrator" / f"{name}.py") for name in USED]


def test_the_hash_covers_the_code_of_the_watcher() -> None:
    code = dict(payloads.rank_code(PACKAGE))
    stored = code.pop(payloads.RANK_HASH)
    assert stored == payloads.content_hash(code).encode()
    assert {"orchestrator/rank/runtime/rank_main.py", "orchestrator/rank/watcher/steps.py"} <= set(code)
