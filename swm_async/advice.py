"""Which number of workers is best, how sure that is, and what holds a pool up; no I/O.

Which of several is the fastest is asked of resamples of the rounds in which they were measured:
drawn with replacement, as many as there are (the bootstrap: Efron, "Bootstrap methods: another look
at the jackknife", Annals of Statistics 7, 1979, pages 1-26). Few rounds all look alike by chance,
as heads of a coin do: of n rounds no confidence above 1 - 2**-n is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

SURE: Final = 0.95
LIKELY: Final = 0.75
_RESAMPLES: Final = 2000
_STRAGGLES: Final = 2.0
"""An environment whose step takes so many times as long as the median one's holds up the others."""
_COLD_S: Final = 50e-6
"""What the first step after a wake-up may take longer, with its caches cold."""


@dataclass(frozen=True)
class Figures:
    """What a pool tells of its work, see `EnvPool.stats`.

    Attributes:
        step_mean_s, step_worst_s: Seconds of a step, by environment; sampled.
        waiting_share: From 0 to 1, by worker.
    """

    step_mean_s: list[float]
    step_worst_s: list[float]
    waiting_share: list[float]


def confidences(samples: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """How sure it is of each candidate, from 0 to 1, that its median rate is the highest.

    Args:
        samples: For each candidate its rates, one per round, the same rounds for all.
    """
    rates = np.array(list(samples.values()), np.float64)
    rounds = rates.shape[1]
    drawn = np.random.default_rng(0).integers(rounds, size=(_RESAMPLES, rounds))
    winners = np.median(rates[:, drawn], axis=2).argmax(axis=0)
    wins = np.bincount(winners, minlength=len(rates)) / _RESAMPLES
    return dict(zip(samples, np.minimum(wins, 1 - 2.0**-rounds).tolist(), strict=True))


def fastest(samples: Mapping[int, Sequence[float]]) -> int:
    """The candidate with the highest median rate; of equal ones the first."""
    return max(samples, key=lambda candidate: float(np.median(samples[candidate])))


def in_words(samples: Mapping[int, Sequence[float]]) -> str:
    """Which number of workers is the fastest and how sure that is, in a sentence.

    Args:
        samples: Rates by number of workers, one per round.
    """
    best = fastest(samples)
    confidence = confidences(samples)[best]
    others = {count: rates for count, rates in samples.items() if count != best}
    sentence = f"num_workers={best}"
    if not others:
        return f"{sentence}, the only one that was tried"
    second = fastest(others)
    ratio = float(np.median(np.divide(samples[best], samples[second])))
    how_sure = "sure" if confidence >= SURE else "likely" if confidence >= LIKELY else "undecided"
    sentence += f" ({how_sure}, confidence {100 * confidence:.0f} %: "
    sentence += f"{ratio:.2f} × num_workers={second})"
    if best == max(samples) and how_sure != "undecided":
        sentence += "; more workers may be faster still"
    return sentence


def held_up_by(figures: Figures) -> list[str]:
    """What a pool's figures say about its speed, in some sentences."""
    means, worst = np.array(figures.step_mean_s), np.array(figures.step_worst_s)
    slowest, typical = int(means.argmax()), float(np.median(means))
    waiting = float(np.mean(figures.waiting_share))
    sentences = [
        f"a step of one environment takes {_duration(float(means.mean()))} on average, of the "
        f"slowest (environment {slowest}) {_duration(means[slowest])}; the longest of all took "
        f"{_duration(worst.max())} (environment {int(worst.argmax())})",
        f"the workers wait {100 * waiting:.0f} % of the time",
    ]
    if means[slowest] > _STRAGGLES * typical + _COLD_S:
        sentences.append(
            f"environment {slowest} holds up the others: send and recv, and a World's "
            'schedule="ready", do not wait for it'
        )
    return sentences


def _duration(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
