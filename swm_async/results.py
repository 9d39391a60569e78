"""What an evaluation came to: arrays over episodes, and a summary for people.

It knows the finished accounts alone: no time steps, pools or policies.

Letters: `E` = episodes.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

NORMAL_QUANTILE_975 = 1.959963984540054
"""The value that a standard normal variable exceeds in 2.5 % of all cases."""


class Results(dict[str, Any]):
    """The dict that `World.evaluate` returns; printing it gives its summary.

    Keys: `success_rate` (percent) and the arrays over episodes, in the order in which they
    started: `episode_successes` `(E,) bool`, `seeds` `(E,) int64`, `episode_returns`
    `(E,) float64`, `episode_lengths` `(E,) int64`, `episode_terminated`, `episode_truncated`
    `(E,) bool`.
    """

    def success_interval(self) -> tuple[float, float]:
        """Return the 95 % confidence interval of the success rate, in percent."""
        successes = self["episode_successes"]
        low, high = wilson_interval(int(np.count_nonzero(successes)), len(successes))
        return 100.0 * low, 100.0 * high

    def summary(self) -> str:
        """Return some lines of text: success rate with its interval, means and spreads."""
        low, high = self.success_interval()
        successes = self["episode_successes"]
        rows = (
            ("episodes", f"{len(successes)}"),
            (
                "success rate",
                f"{self['success_rate']:.1f} % ({np.count_nonzero(successes)} episodes; "
                f"95 % confidence {low:.1f} to {high:.1f} %)",
            ),
            ("return", _spread(self["episode_returns"])),
            ("length", _spread(self["episode_lengths"])),
            (
                "ended",
                f"{np.count_nonzero(self['episode_terminated'])} terminated, "
                f"{np.count_nonzero(self['episode_truncated'])} truncated",
            ),
        )
        return "\n".join(f"{name:<13} {value}" for name, value in rows)

    def __str__(self) -> str:
        return self.summary()


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a probability, as shares from 0 to 1.

    It is Wilson's score interval ("Probable inference, the law of succession, and statistical
    inference", Journal of the American Statistical Association 22, 1927, pages 209-212). Unlike
    the usual one it has a width also where all trials, or none, were successes.
    """
    square = NORMAL_QUANTILE_975**2
    share = successes / trials
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    spread = sqrt(share * (1 - share) / trials + square / (4 * trials**2))
    half = NORMAL_QUANTILE_975 * spread / (1 + square / trials)
    # At the ends the exact bounds are 0 and 1, which rounding may miss.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return low, high


def _spread(values: Any) -> str:
    return (
        f"{np.mean(values):.4g} on average (standard deviation {np.std(values):.4g}, "
        f"{np.min(values):.4g} to {np.max(values):.4g})"
    )
