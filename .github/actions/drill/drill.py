"""One drill of a job in CI: it runs ``ccbed run``, and shows the answer as a summary of the job and beside the script's line.

Everything comes from the environment: SCRIPT, ARGS, REQUIRE, ACCEPT, FAIL_NODE, NODES, INVENTORY, OPTIONS, and what GitHub Actions
sets (GITHUB_STEP_SUMMARY, GITHUB_OUTPUT). The report is copied to ``ccbed-report``. The exit code is that of ``ccbed run``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

OUTCOMES = {0: "pass", 1: "fail", 2: "unknown"}
REPORT = Path("ccbed-report")
#: Calls that load a checkpoint: where no place in the script is known, the fix belongs to the first of them.
LOADS = re.compile(r"\b(?:load_state_dict|torch\.load|dcp\.load|load_checkpoint|load_file)\(")


def command() -> list[str]:
    words = [sys.executable, "-m", "ccbed", "run", os.environ["SCRIPT"], "--json", "--ephemeral"]
    for option, name in {"-i": "INVENTORY", "--nodes": "NODES", "--require": "REQUIRE", "--accept": "ACCEPT"}.items():
        words += [option, os.environ[name]] if os.environ.get(name) else []
    words += ["--fail-node", os.environ["FAIL_NODE"]] if os.environ.get("FAIL_NODE") else []
    words += shlex.split(os.environ.get("OPTIONS", ""))
    args = shlex.split(os.environ.get("ARGS", ""))
    return [*words, "--", *args] if args else words


def place(texts: list[str], script: Path) -> int | None:
    """The line of the script that the texts name; else the first that loads a checkpoint."""
    for text in texts:
        if named := re.search(rf"\b{re.escape(script.name)}:(\d+)", text):
            return int(named[1])
    lines = script.read_text(errors="replace").splitlines() if script.is_file() else []
    return next((number for number, line in enumerate(lines, start=1) if LOADS.search(line)), None)


def sentence(document: dict[str, Any]) -> str:
    """The answer; for a mistake in the command line its problems and the next step."""
    error: dict[str, Any] = document.get("error") or {}
    return str(document.get("sentence") or "; ".join([*error.get("problems", ()), f"next: {error.get('next', '')}"]))


def annotation(document: dict[str, Any], script: Path) -> str:
    """The line that GitHub Actions shows beside the code; empty for a run that passes."""
    if not document["exit"]:
        return ""
    rung = next((rung for rung in document.get("rungs", ()) if rung["state"] in ("does not hold", "unknown")), None)
    texts = [sentence(document), *([rung["text"], rung["fix"] and f"fix: {rung['fix']}"] if rung else [])]
    message = ". ".join(
        text.rstrip(".") for n, text in enumerate(texts) if text and not any(text in t for t in texts[:n])
    )
    line = place(texts, script)
    where = f"file={script}" + (f",line={line}" if line else "")
    level = "warning" if document["exit"] == 2 else "error"
    return f"::{level} {where},title=ccbed::" + message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def main() -> int:
    done = subprocess.run(command(), stdout=subprocess.PIPE, text=True, check=False)
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:  # an earlier Python, or no ccbed
        document = {"exit": done.returncode or 4, "sentence": done.stdout.strip() or "ccbed printed nothing"}
    shutil.rmtree(REPORT, ignore_errors=True)
    report = Path(document["directory"]) / "report" if "directory" in document else None
    if report and report.is_dir():
        shutil.copytree(report, REPORT)
    summary = REPORT / "summary.md"
    rungs = [f"{rung['name']:14} {rung['state']:14} {rung['text']}" for rung in document.get("rungs", ())]
    print("\n".join([*rungs, sentence(document)]))
    if text := annotation(document, Path(os.environ["SCRIPT"])):
        print(text)
    for name, content in {
        "GITHUB_STEP_SUMMARY": summary.read_text() if summary.is_file() else "\n".join([*rungs, ""]),
        "GITHUB_OUTPUT": f"outcome={OUTCOMES.get(document['exit'], 'broken')}\nartifact=ccbed-{document.get('run', 'drill')}\n",
    }.items():
        if os.environ.get(name):
            with Path(os.environ[name]).open("a") as file:
                file.write(content)
    return int(document["exit"])


if __name__ == "__main__":
    sys.exit(main())
