"""How often the best possible test finds a step of one node in one of 20 metrics, at a rate of false failures.

By the lemma of Neyman and Pearson (Philosophical Transactions A 231, 1933) no test is better than the likelihood ratio. The one
here knows more than any gate can: all variances and correlations, the effects of the days, the steps at reboots, which samples are
bad, which samples are in the worse mode, and the night in which the step would begin. It does not know the metric, the offset of the
node, and whether a night of the metric with two modes is a bad one. A gate that fails at most ``false_rate`` of sound
node-nights fails at most three times as many on one of three nights, so that the test gets that much.
"""

from __future__ import annotations

import itertools

import numpy as np

from .fleets import Floats, Noise

HISTORY = 30


def power(
    false_rate: float, size: float, within: int, *, least_nights: int = 1, metrics: int = 20, cases: int = 40_000
) -> float:
    """The share found; a node with fewer than ``least_nights`` measured nights among ``within`` is never found.

    The ratio of the mixture over all metrics is L. With cases of the step, the share of sound nodes with L > c is the mean of
    1/L where L > c (importance sampling).
    """
    rng, noise = np.random.default_rng(0), Noise()
    ratios = np.array([_log_ratio(rng, noise, np.log1p(size), within, least_nights, metrics) for _ in range(cases)])
    ordered = np.sort(ratios)[::-1]
    false = np.cumsum(np.exp(-ordered)) / cases
    return float(np.searchsorted(false, within * false_rate) / cases)


def _log_ratio(
    rng: np.random.Generator, noise: Noise, step: float, within: int, least_nights: int, metrics: int
) -> float:
    """Of a node with the step in a random metric. One metric of all has two modes by night."""
    measured = rng.random(HISTORY + within) >= noise.missing
    nights = np.flatnonzero(measured[HISTORY:]).astype(float)
    if len(nights) < least_nights or not len(nights):
        return -np.inf
    covariance = _covariance(noise, np.flatnonzero(measured[:HISTORY]).astype(float), nights + HISTORY)
    root = np.linalg.cholesky(covariance)
    values: Floats = (root @ rng.normal(size=(len(nights), metrics))).T
    values[0] += np.where(rng.random(len(nights)) < noise.mode_share, noise.mode, 0.0)
    values[rng.integers(metrics)] += step
    inverse: Floats = np.linalg.inv(covariance).astype(float)
    logs = values @ inverse @ np.full(len(nights), step) - step**2 * inverse.sum() / 2
    logs[0] = _with_modes(values[0] - step, inverse, noise) - _with_modes(values[0], inverse, noise)
    return float(np.logaddexp.reduce(logs) - np.log(metrics))


def _with_modes(values: Floats, inverse: Floats, noise: Noise) -> float:
    """The log-likelihood, but for a constant, over all choices of nights in the worse mode."""
    choices = np.array(list(itertools.product((0, 1), repeat=len(values))))
    rest = values - noise.mode * choices
    weights = choices @ np.full(len(values), np.log(noise.mode_share / (1 - noise.mode_share)))
    return float(np.logaddexp.reduce(weights - np.einsum("ij,jk,ik->i", rest, inverse, rest) / 2))


def _covariance(noise: Noise, before: Floats, after: Floats) -> Floats:
    """Of the measured nights since the step, given those before it; the offset of the node is known as well as they tell."""
    nights = np.concatenate([before, after])
    distance = np.abs(nights[:, None] - nights)
    whole = noise.nights_sigma**2 * noise.correlation**distance + noise.node**2
    whole = whole + noise.repeat**2 / 5 * np.eye(len(nights))
    count = len(before)
    gain = whole[count:, :count] @ np.linalg.inv(whole[:count, :count])
    result: Floats = whole[count:, count:] - gain @ whole[:count, count:]
    return result
