"""``make against REF=COMMIT``: is the checkout slower than a commit? Exit code 1 if a measure is, by its interval."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from . import checkouts, ratios
from .measures import MEASURES
from .sides import Side
from .turns import SIDES, FailedError, Times, Turns

TOO_SLOW, FAILED, INTERRUPTED = 1, 2, 130
#: The most pairs of a measure, unless another number is named.
PAIRS = 30
STOPS = (signal.SIGTERM, signal.SIGHUP)


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    try:
        return compare(checkouts.commit_of(options.ref), options.measures, options.pairs)
    except FailedError as error:
        report(f"error: {error}")
        return FAILED
    except KeyboardInterrupt:
        report("interrupted; both beds are down")
        return INTERRUPTED


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make against", description=__doc__)
    parser.add_argument("ref", metavar="REF", type=_ref)
    parser.add_argument("--measures", metavar="NAME,NAME", type=_measures, default=",".join(MEASURES))
    parser.add_argument(
        "--pairs", type=_pairs, default="", help=f"the most pairs of a measure; {PAIRS} unless another number is named"
    )
    return parser.parse_args(argv)


def compare(commit: str, names: Sequence[str], most: int) -> int:
    """Print the table, also of a comparison that was interrupted."""
    for stop in STOPS:
        if signal.getsignal(stop) is not signal.SIG_IGN:
            signal.signal(stop, signal.default_int_handler)
    with _sides(commit) as sides:
        turns = Turns(
            titles={name: MEASURES[name].titles for name in warmed_up(names, sides)},
            take=lambda name, side: take(name, sides[side]),
            report=report,
        )
        try:
            turns.measure(most)
        finally:
            print(describe(commit, names, turns.samples))
    return TOO_SLOW if ratios.too_slow(turns.samples) else 0


def describe(commit: str, names: Sequence[str], samples: Mapping[str, Sequence[ratios.Pair]]) -> str:
    """What no side, or only one, has is "-"."""
    rows = {title: samples.get(title, ()) for name in names for title in MEASURES[name].titles}
    load = f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} at the end"
    return f"\nThe checkout against {checkouts.subject_of(commit)}; {load}\n\n{ratios.table(rows)}"


def take(name: str, side: Side) -> Times:
    """Measure once. Raises FailedError; the bed is a new one then."""
    try:
        return MEASURES[name].take(side)
    except FailedError:
        side.renew()
        raise


def warmed_up(names: Sequence[str], sides: Mapping[str, Side]) -> Iterator[str]:
    """The measures that both sides have, each taken once. Raises FailedError if one fails in the checkout."""
    for name in names:
        if all(_warmed_up(name, sides[side], side) for side in SIDES):
            yield name


def _warmed_up(name: str, side: Side, role: str) -> bool:
    if not MEASURES[name].exists(side.tree):
        report(f"{role}: has no {name}")
        return False
    report(f"{role}: {name}, once before it counts")
    try:
        take(name, side)
    except FailedError as error:
        if role == "now":
            raise
        report(f"{role}: has no {name} as it is now: {error}")
        return False
    return True


@contextmanager
def _sides(commit: str) -> Iterator[Mapping[str, Side]]:
    """Both builds, with their beds up; at the end, also after Ctrl-C, the beds are down and the builds are gone."""
    cache = platformdirs.user_cache_path("ccbed-against", ensure_exists=True)
    with tempfile.TemporaryDirectory(dir=cache, ignore_cleanup_errors=True) as name:
        trees = {side: Path(name) / side for side in SIDES}
        report(f"builds in {name}")
        checkouts.export_commit(commit, trees["before"])
        checkouts.export_checkout(trees["now"])
        for tree in trees.values():
            checkouts.install(tree)
        sides = {side: Side(tree) for side, tree in trees.items()}
        try:
            for side in sides.values():
                side.up()
            yield sides
        finally:
            _take_down(sides.values())


def _take_down(sides: Iterable[Side]) -> None:
    """A second Ctrl-C does not interrupt it: processes would stay."""
    for stop in (signal.SIGINT, *STOPS):
        signal.signal(stop, lambda *_: report("the beds are being taken down"))
    for side in sides:
        side.down()


def report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _ref(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("no commit is named; next: make against REF=HEAD~1")
    return text


def _pairs(text: str) -> int:
    if text and (not text.isdecimal() or int(text) < 1):
        raise argparse.ArgumentTypeError(f"must be a number of pairs, 1 or more (got {text})")
    return int(text or PAIRS)


def _measures(text: str) -> list[str]:
    names = text.split(",") if text else list(MEASURES)
    if unknown := [name for name in names if name not in MEASURES]:
        raise argparse.ArgumentTypeError(f"no measure is called {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    return names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
