"""What the gates are compared with: SuperBench's criteria on distributions, and Apache Otava's change points."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

import numpy as np

from .fleets import Floats

#: Points of the ROC curve: the share of sound nodes and metrics that would be named.
FALSE_RATES = (0.1, 0.03, 0.01, 0.003, 0.001)
#: Reads series as JSON; writes for each -log10(p) of its last change for the worse, 0 if there is none.
OTAVA = """
import json, math, sys
from otava.analysis import compute_change_points
scores = []
for series in json.load(sys.stdin):
    points, _ = compute_change_points(series, window_len=30, max_pvalue=0.5, min_magnitude=0.0)
    worse = [point.stats for point in points if point.stats.mean_2 < point.stats.mean_1]
    scores.append(max([-math.log10(max(stats.pvalue, 1e-300)) for stats in worse] or [0.0]))
json.dump(scores, sys.stdout)
"""


def superbench(samples: Floats) -> Floats:
    """nodes -> how far a node is on the worse side of the criteria; 0.05 and more is a defect by SuperBench's similarity of 95 %.

    ``samples``: nodes x samples of a rate, NaN where there is none. The distance of two nodes is the area between their
    empirical distribution functions over the greater of their means; the criteria are the node with the least total distance.
    Source: Xiong and others, SuperBench, USENIX ATC 2024 (arXiv 2402.06194), section on the Validator.
    """
    shares = (np.arange(15) + 0.5) / 15
    kept = [row[~np.isnan(row)] for row in samples]
    quantiles = np.array(
        [np.quantile(row, shares, method="inverted_cdf") if len(row) else shares * np.nan for row in kept]
    )
    means = quantiles.mean(axis=1)
    scale = np.fmax(means[:, None], means)
    area = np.abs(quantiles[:, None] - quantiles).mean(axis=2) / scale
    criteria = int(np.nanargmin(np.where(np.isnan(means), np.nan, np.nansum(area, axis=1))))
    worse = np.maximum(quantiles[criteria] - quantiles, 0).mean(axis=1) / scale[criteria]
    result: Floats = np.nan_to_num(worse)
    return result


def otava(python: str, series: Sequence[Sequence[float]]) -> list[float]:
    """``python``: the interpreter of an environment with apache-otava. ``series``: rates by night."""
    done = subprocess.run(
        [python, "-c", OTAVA], input=json.dumps(series), capture_output=True, text=True, timeout=1800, check=True
    )
    scores: list[float] = json.loads(done.stdout)
    return scores


def roc(positive: Floats, negative: Floats) -> tuple[float, list[float]]:
    """The area under the curve, and the share that is detected at each of FALSE_RATES."""
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, side="left")
    ties = np.searchsorted(ordered, positive, side="right") - below
    area = float(np.mean((below + ties / 2) / len(ordered)))
    return area, [float(np.mean(positive > np.quantile(ordered, 1 - rate, method="higher"))) for rate in FALSE_RATES]
