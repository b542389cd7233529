"""No page scrolls sideways on a phone: measured in a browser, 400 px wide."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from orchestrator.nightly.reports import page, runs_page
from orchestrator.reports.page import compared
from orchestrator.views import comparison

from . import synthetic_nights, test_repeats_page, test_runs_page
from .test_compare import collective
from .test_runs_page import CHROMIUM

WIDTH = 400
#: Wider than any phone: what the measurement must notice.
WIDE = b'<main><div style="width:900px">wide</div></main>'
MEASURE = """<script>
window.onload = () => {
  const widths = {};
  for (const frame of document.querySelectorAll("iframe")) widths[frame.id] = frame.contentDocument.documentElement.scrollWidth;
  document.title = "RESULT" + JSON.stringify(widths) + "END";
};
</script>"""


def pages(directory: Path) -> dict[str, bytes]:
    first, second = collective(18e6, 1), collective(16e6, 2)
    entries = [test_runs_page.run(directory, number) for number in range(200)]
    return {
        "night": page.render(synthetic_nights.report(nodes=16, nights=24)),
        "runs": runs_page.render(directory, entries, test_runs_page.nights(directory), [test_runs_page.trend()]),
        "repeats": test_repeats_page.page(test_repeats_page.rows(), test_repeats_page.figures()).encode(),
        "compared": compared.render(compared.side(first), compared.side(second), comparison.compare(first, second)),
        "too-wide": WIDE,
    }


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_no_page_is_wider_than_a_phone(tmp_path: Path) -> None:
    frames = ""
    for name, content in pages(tmp_path).items():
        (tmp_path / f"{name}.html").write_bytes(content)
        frames += f'<iframe id="{name}" src="{name}.html" style="width:{WIDTH}px;height:800px;border:0"></iframe>'
    (tmp_path / "frames.html").write_text(
        f"<!doctype html><html><head><title>x</title></head><body>{frames}{MEASURE}</body></html>"
    )
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         f"--user-data-dir={tmp_path}/chromium", "--dump-dom", f"file://{tmp_path}/frames.html"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    result = re.search(r"<title>RESULT(.*?)END</title>", done.stdout)
    assert result, done.stderr[-2000:]
    widths = json.loads(result[1])
    assert widths.pop("too-wide") >= 900, "a page that is too wide is noticed"
    assert widths and max(widths.values()) <= WIDTH, widths
