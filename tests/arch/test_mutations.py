"""The list of mutations fits the product of today, and the runner picks the right lines and tests for each."""

from __future__ import annotations

import pytest

from tests.mutants import mutations
from tests.mutants.mutations import ROOT, CoveringTest, Mutation

SOURCE = """LIMIT = 2


def f(a):
    if (
        a > LIMIT
    ):
        return a
    return 0
"""


def mutation(text: str, replacement: str = "", tests: tuple[str, ...] = ()) -> Mutation:
    return Mutation(id="m", file="a.py", text=text, replacement=replacement, breaks="", tests=tests)


def covering(name: str, seconds: float, *lines: int) -> CoveringTest:
    return CoveringTest(name=name, seconds=seconds, lines={"a.py": frozenset(lines)})


def test_every_mutation_changes_one_place_of_the_product() -> None:
    listed = mutations.read()
    assert len({item.id for item in listed}) == len(listed) >= 60
    for item in listed:
        source = (ROOT / item.file).read_text()
        assert mutations.apply(item, source) != source


def test_every_mutation_says_what_it_breaks_and_names_tests_that_exist() -> None:
    listed = mutations.read()
    assert [item.id for item in listed if not item.breaks.endswith(".")] == []
    missing = [
        file for item in listed for test in item.tests if not (ROOT / (file := test.partition("::")[0])).is_file()
    ]
    assert missing == []


def test_the_survivors_are_mutations_of_the_list() -> None:
    assert mutations.survivors().keys() <= {item.id for item in mutations.read()}


def test_a_text_that_occurs_twice_or_never_is_refused() -> None:
    for text in ("return", "absent"):
        with pytest.raises(ValueError, match="must be once"):
            mutations.apply(mutation(text), SOURCE)


def test_the_changed_lines_are_those_of_the_statement_without_its_body() -> None:
    assert mutations.changed_lines(SOURCE, "a > LIMIT") == range(5, 8)
    assert mutations.changed_lines(SOURCE, "return a") == range(8, 9)
    assert mutations.changed_lines(SOURCE, "return a\n    return 0") == range(8, 10)


def test_the_cheapest_covering_tests_come_first_until_their_time_is_spent() -> None:
    known = [covering("slow", 25, 5), covering("other", 0.1, 8), covering("fast", 1, 5, 8), covering("last", 26, 6)]
    assert mutations.covering(mutation("a > LIMIT", "a >= LIMIT"), SOURCE, known) == ("fast", "slow")
    assert mutations.covering(mutation("a > LIMIT", tests=("tests/x.py",)), SOURCE, known) == ("tests/x.py",)
    assert mutations.covering(mutation("a > LIMIT"), SOURCE, known[1:2]) == ()


def test_a_line_that_is_run_at_import_is_covered_by_every_test_of_its_file() -> None:
    known = [covering("a", 1, 8), CoveringTest(name="b", seconds=1, lines={"b.py": frozenset({1})})]
    assert mutations.covering(mutation("LIMIT = 2", "LIMIT = 3"), SOURCE, known) == ("a",)
