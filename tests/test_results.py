"""Results are a dict; printed, they tell what an evaluation came to and how sure that is."""

import numpy as np
import pytest

from swm_async.results import Results, wilson_interval


def results(successes, returns=None, lengths=None):
    count = len(successes)
    successes = np.array(successes)
    return Results(
        success_rate=100.0 * float(successes.mean()),
        episode_successes=successes,
        seeds=np.arange(count),
        episode_returns=np.array(returns if returns is not None else np.zeros(count)),
        episode_lengths=np.array(lengths if lengths is not None else np.full(count, 5)),
        episode_terminated=successes,
        episode_truncated=~successes,
    )


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in
        # Medicine 17, 1998, table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_is_that_of_a_published_table(successes, trials, low, high):
    found = wilson_interval(successes, trials)
    assert found == pytest.approx((low, high), abs=5.1e-5)
    mirrored = wilson_interval(trials - successes, trials)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=5.1e-5)


@pytest.mark.parametrize("trials", [1, 7, 1000])
def test_the_interval_lies_between_nothing_and_everything(trials):
    assert wilson_interval(0, trials)[0] == 0.0
    assert wilson_interval(trials, trials)[1] == 1.0
    for successes in range(trials + 1):
        low, high = wilson_interval(successes, trials)
        assert 0 <= low <= successes / trials <= high <= 1


def test_results_are_a_dict():
    found = results([True, False])
    assert isinstance(found, dict)
    assert found["success_rate"] == 50.0
    assert {**found}.keys() == found.keys()
    assert repr(found).startswith("{'success_rate': 50.0")


def test_the_interval_of_results_is_in_percent():
    low, high = wilson_interval(1, 4)
    interval = results([True, False, False, False]).success_interval()
    assert interval == (100 * low, 100 * high)


def test_the_summary_tells_rates_means_and_spreads():
    found = results([True] * 15 + [False] * 133, np.arange(148) / 2, [3] * 74 + [5] * 74)
    # Of 0 … 147 the variance is (148² - 1) / 12.
    spread = np.sqrt((148**2 - 1) / 12) / 2
    expected = [
        "episodes      148",
        "success rate  10.1 % (15 episodes; 95 % confidence 6.2 to 16.0 %)",
        f"return        36.75 on average (standard deviation {spread:.4g}, 0 to 73.5)",
        "length        4 on average (standard deviation 1, 3 to 5)",
        "ended         15 terminated, 133 truncated",
    ]
    assert found.summary().splitlines() == expected
    assert str(found) == found.summary()
