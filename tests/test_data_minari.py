"""A Minari dataset is read as if it had been recorded here."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from recorded import Recorded
from swm_async import PointGoalExpert, World
from swm_async.data import as_dataset

POINT_GOAL = "swm_async/PointGoal-v0"


class Fake:
    """What `minari.load_dataset` returns, as far as it is looked at."""

    total_episodes = 2

    def iterate_episodes(self, indices=None):
        for k in range(2) if indices is None else indices:
            count = 2 + k
            yield SimpleNamespace(
                id=k,
                observations={
                    "state": np.arange(7.0 * (count + 1)).reshape(-1, 7),
                    "deep": {"er": np.arange(count + 1), "pair": (np.zeros(count + 1),)},
                },
                actions=np.arange(2 * count, dtype=np.float32).reshape(-1, 2) + 10 * k,
                rewards=np.arange(count) + 0.5,
                terminations=np.arange(count) == count - 1,
                truncations=np.zeros(count, bool),
                infos={"odd": np.zeros(1), "size": np.full(count + 1, k)},
            )


def test_rows_are_aligned_as_in_a_recording():
    dataset = as_dataset(Fake())
    assert dataset.lengths.tolist() == [3, 4]
    found = dataset.load_episode(0)
    nan = np.nan
    wanted = {
        "state": np.arange(21.0).reshape(3, 7),
        "deep.er": [0, 1, 2],
        "deep.pair.0": [0, 0, 0],
        "action": [[0, 1], [2, 3], [nan, nan]],
        "reward": [nan, 0.5, 1.5],
        "terminated": [False, False, True],
        "truncated": [False, False, False],
        "size": [0, 0, 0],
        "step_idx": [0, 1, 2],
    }
    assert dataset.column_names == sorted(found) == sorted(wanted)
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    (chunk,) = dataset.load_chunk([1], [1], [3])
    np.testing.assert_array_equal(chunk["action"], [[12, 13], [14, 15]])


def test_integer_actions_end_with_the_lowest_integer():
    class Discrete(Fake):
        def iterate_episodes(self, indices=None):
            for episode in super().iterate_episodes(indices):
                episode.actions = np.arange(len(episode.rewards))
                episode.observations = np.zeros((len(episode.rewards) + 1, 3))
                yield episode

    found = as_dataset(Discrete()).load_episode(0)
    assert found["action"].tolist() == [0, 1, -(2**63)]
    assert found["observation"].shape == (3, 3)


def test_other_datasets_are_left_as_they_are():
    dataset = Recorded([{"x": np.zeros(3)}])
    assert as_dataset(dataset) is dataset


# A failing import of Minari's own would make these red for no reason of ours.
@pytest.mark.filterwarnings("ignore")
def test_a_world_evaluates_from_a_real_one(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    pytest.importorskip("jax", reason="Minari needs jax to make a dataset")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = minari.DataCollector(gymnasium.make(POINT_GOAL, max_episode_steps=30))
    expert = PointGoalExpert()
    states = []
    for seed in range(3):
        observation, info = env.reset(seed=seed)
        states.append([observation["state"]])
        ended = False
        while not ended:
            batch = {"state": observation["state"], "goal_state": info["goal_state"]}
            action = expert.get_action({key: value[None, None] for key, value in batch.items()})[0]
            observation, _, terminated, truncated, info = env.step(action)
            states[-1].append(observation["state"])
            ended = terminated or truncated
    source = env.create_dataset("point-goal/expert-v0", description="three episodes")
    env.close()
    dataset = as_dataset(source)
    assert dataset.lengths.tolist() == [len(rows) for rows in states]
    np.testing.assert_array_equal(dataset.load_episode(2)["state"], states[2])
    with World(POINT_GOAL, 3, add_pixels=False, num_workers=0) as world:
        world.set_policy(expert)
        passages = {"episodes_idx": [0, 1, 2], "start_steps": [0, 1, 2], "goal_offset": 8}
        results = world.evaluate(dataset=source, eval_budget=30, **passages)
    assert results["success_rate"] == 100
