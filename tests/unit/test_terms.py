"""The terms that are ccbed's own: `ccbed help`, the page made from them, and their explanation where they first stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.reports.page import terms

from .golden import same_as_golden

HEAD = """# Terms

`ccbed help TERM` prints an entry of this page, also by a former name of the term; pages of reports explain a term where it first stands.

| term | meaning |
|---|---|
"""


def test_the_page_of_terms_is_made_from_their_file() -> None:
    rows = (f"| {name} | {text} |\n" for name, text in sorted(terms.terms().items()))
    same_as_golden("../../orchestrator/cli/terms.md", HEAD + "".join(rows))


@pytest.mark.parametrize("name", terms.terms())
def test_a_term_has_two_sentences_and_fits_a_screen(name: str) -> None:
    text = terms.terms()[name]
    assert len(re.findall(r"[.](?= |$)", text)) == 2 and len(text) <= 300


def test_a_name_belongs_to_one_term_and_is_no_verb_of_another_meaning() -> None:
    assert len(terms.names()) >= len(terms.terms()) + 20
    assert {"twin": "reference run", "gang": "worker group", "keeper": "host agent"}.items() <= terms.names().items()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("help twin", "reference run: The undisturbed run"),
        ("help Reference run", "reference run: The undisturbed run"),
        ("help", "terms: bed, host, node"),
        ("help up", "Usage: ccbed up [OPTIONS] INVENTORY"),
        ("help bundle sign", "Usage: ccbed bundle sign"),
        ("-h up", "Usage: ccbed up [OPTIONS] INVENTORY"),
        ("--help bundle sign", "Usage: ccbed bundle sign"),
    ],
)
def test_help_explains_a_term_or_shows_a_verb(capsys: pytest.CaptureFixture[str], line: str, expected: str) -> None:
    assert main.run(line.split()) == 0
    assert capsys.readouterr().out.startswith(expected)


def test_an_unknown_term_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["help", "refrence", "run"]) == 3
    assert "unknown term or verb refrence run; did you mean reference run?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("run train.py --epochs 3", "put the script's options behind --: ccbed run train.py -- --epochs 3"),
        (
            "run --fail-node 2 train.py --lr=1",
            "put the script's options behind --: ccbed run --fail-node 2 train.py -- --lr=1",
        ),
        ("run dp-ring --stepz 3", "next: ccbed run --help"),
        ("run train.py --fail-nod 2", "next: ccbed run --help"),
    ],
)
def test_options_of_a_script_stand_behind_two_dashes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, hint: str
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    assert main.run(line.split()) == 3
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "notice"),
    [
        ("run no-such-trial --no-twin", "--no-twin is now --no-reference"),
        ("run no-such-trial --twin", "--twin is now --reference"),
        ("logs no-such-run --epoch 1", "--epoch is now --start"),
        ("run no-such-trial -- --twin", ""),
    ],
)
def test_former_names_of_options_are_read_with_a_notice(
    capsys: pytest.CaptureFixture[str], line: str, notice: str
) -> None:
    assert main.run(line.split()) == 3
    err = capsys.readouterr().err
    assert "unknown option" not in err
    assert notice in err if notice else " is now " not in err


def test_a_term_is_explained_where_it_first_stands_in_the_text_of_a_page() -> None:
    page = '<html><title>bed</title><body class="bed"><h1><a href="x">bed</a></h1><p>A spare of the Bed; a spare</p></body></html>'
    explained = terms.explained(page)
    assert explained.count("<abbr title=") == 2
    assert f'A <abbr title="{terms.terms()["spare"]}">spare</abbr> of the <abbr title=' in explained
    assert re.sub(r'<abbr title="[^"]*">|</abbr>', "", explained) == page
