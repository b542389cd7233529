"""The pages of real runs in a real browser: a failover, a failure with its reason, collectives, a comparison, a night."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ..unit import browser
from ..unit.browser import Browser, needs_chromium
from .conftest import Bed

pytestmark = [pytest.mark.e2e, needs_chromium]

#: A script whose rank 1 fails in step 5, after lines that are no HTML.
FAILS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 21):
    loss = model(torch.ones(4, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    print(f"step {step} </pre><script>document.title = 'executed'</script>", flush=True)
    if dist.get_rank() == 1 and step == 5:
        raise RuntimeError("shape mismatch <b>&amp;</b>")
"""
ERROR = "RuntimeError: shape mismatch <b>&amp;</b>"
#: A script that joins no process group.
PLAIN = "import time\ntime.sleep(0.3)\nprint('done')\n"


@dataclass(frozen=True, kw_only=True)
class Bundles:
    """Directories of real runs and of a night; ``compared``: the page of two runs."""

    failover: Path
    failed: Path
    plain: Path
    collective: Path
    night: Path
    compared: Path


def ran(bed: Bed, directory: Path, code: int, *words: str) -> Path:
    ended, output = bed.ccbed(*words, "--runs-dir", str(directory / "runs"), "--json")
    assert ended == code, output
    document: dict[str, Any] = json.loads(output)
    return Path(document["directory"])


@pytest.fixture(scope="module")
def plain(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plain")
    (directory / "plain.py").write_text(PLAIN)
    return ran(bed, directory, 0, "run", str(directory / "plain.py"))


@pytest.fixture(scope="module")
def bundles(bed: Bed, plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    directory = tmp_path_factory.mktemp("pages")
    (directory / "fails.py").write_text(FAILS)
    (directory / "plain.py").write_text(PLAIN)
    (directory / "suite.yml").write_text(
        "suite: pages\nseed: 3\ndefaults: {world: {nodes: 1}}\ntrials:\n  - plain.py\n"
    )

    allreduce = ("run", "allreduce", "--sizes", "4K:16K", "--algorithm", "ring,library", "--iterations", "20")
    made = {
        "failover": ran(bed, directory, 0, "run", "dp-ring", "--fail-node", "2"),
        "failed": ran(bed, directory, 1, "run", str(directory / "fails.py")),
        "plain": plain,
        "collective": ran(bed, directory, 0, *allreduce),
        "night": ran(bed, directory, 0, "nightly", str(directory / "suite.yml")),
    }
    page = directory / "compared.html"
    code, output = bed.ccbed(
        "compare", str(made["collective"]), str(ran(bed, directory, 0, *allreduce)), "--html", str(page)
    )
    assert code == 0, output
    return Bundles(**made, compared=page)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser.opened() as opened:
        yield opened


@pytest.mark.parametrize("name", ["failover", "failed", "plain", "collective", "night", "compared"])
def test_the_page_of_a_real_run_is_readable_and_its_links_lead_to_files(
    chromium: Browser, bundles: Bundles, name: str
) -> None:
    path: Path = getattr(bundles, name)
    file = path if path.is_file() else path / "report" / "index.html"
    browser.check(chromium, file)
    text = file.read_text()
    assert file.stat().st_size < 1_000_000
    for address in re.findall(r'href="([^"]+)"', text):
        if address.startswith("#"):
            assert f'id="{address[1:]}"' in text
        else:
            assert (file.parent / address).is_file(), address


def test_the_page_of_a_failed_run_shows_why(chromium: Browser, bundles: Bundles) -> None:
    with chromium.page(bundles.failed / "report" / "index.html") as page:
        assert page.title() != "executed"
        assert page.locator("#h-why").text_content() == "Why: rank 1 on n1, first start"
        traceback, log = page.locator("pre.log").all_text_contents()
        assert traceback.startswith("Traceback (most recent call last):\n") and traceback.endswith(ERROR)
        assert "</pre><script>" in log and "step 5 " in log
        finding = page.locator(".verdicts tr", has_text="finished").first
        link = finding.locator("a", has_text="event").first
        number = link.get_attribute("href")
        link.click()
        assert page.locator(number).is_visible()
        assert "rank 1 on n1 left with code 1" in page.locator(number).text_content()
        assert page.locator("#h-loss").text_content() == "Loss"


def test_other_reports_of_a_failed_run_show_why(bundles: Bundles) -> None:
    suite = ET.parse(bundles.failed / "report" / "junit.xml").getroot()
    first, *checks = [failure.text or "" for failure in suite.iter("failure")]
    assert "Traceback (most recent call last):" in first and ERROR in first
    (line,) = set(re.findall(r"history\.jsonl:(\d+): [\d.]+ s, rank 1 on n1 left with code 1", "\n".join(checks)))
    event = json.loads((bundles.failed / "history.jsonl").read_text().splitlines()[int(line) - 1])
    assert (event["f"], event["value"]["rank"]) == ("rank.exit", 1)
    summary = (bundles.failed / "report" / "summary.md").read_text()
    assert ERROR in summary and f"history.jsonl:{line}: " in summary


def test_the_lanes_of_a_script_that_joins_no_group_say_training(plain: Path) -> None:
    text = (plain / "report" / "index.html").read_text()
    assert text.count('class="span run"') == 4
    assert "twin" not in text[text.index('id="h-loss"') : text.index('id="h-verdicts"')]
