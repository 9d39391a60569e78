"""The schedule "ready" runs the episodes of lock-step, and asks for whoever waits."""

import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import WORKER_COUNTS
from fake_pool import ByNumber, Countdown, FakeOverlappingPool, FakePool
from probe_env import DEEDS
from recorded import record_point_goal
from swm_async import EnvError, EnvPool, NoisyPolicy, PointGoalExpert, WorkerDied, World
from swm_async.rollout import rollout
from swm_async.worker_policy import WorkerPolicy
from test_rollout import HAND_LENGTHS, assert_played, by_episode

POINT_GOAL = "swm_async/PointGoal-v0"
both_modes = pytest.mark.parametrize("mode", ["auto", "wait"])


class Asked(ByNumber):
    """Takes the mask, and answers NaN in all other rows; keeps who it was asked for."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        self.masks = []
        self.busy = []

    def get_action(self, infos, mask=None):
        assert (mask.dtype, mask.shape) == (bool, (self.pool.num_envs,))
        self.masks.append(np.flatnonzero(mask).tolist())
        self.busy.append(np.flatnonzero(self.pool.busy).tolist())
        actions = np.where(mask[:, None], super().get_action(infos), np.nan)
        assert not np.isnan(actions[mask]).any()
        mask[:] = True  # it is the policy's own
        return actions


def make_pool(num_envs, seed=0):
    return FakeOverlappingPool([Countdown() for _ in range(num_envs)], seed)


def run(pool, policy=None, **arguments):
    """All time steps, with what the live arrays held at their time, and the policy."""
    policy = Asked(pool) if policy is None else policy
    steps = []
    for step in rollout(pool, policy.get_action, schedule="ready", **arguments):
        steps.append((step, {key: value.copy() for key, value in step.infos.items()}))
    assert not pool.busy.any()
    return steps, policy


# Which episodes are run, and when the policy is asked.


@settings(max_examples=200)
@given(
    num_envs=st.integers(1, 7),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=20),
    mode=st.sampled_from(["auto", "wait"]),
    least=st.integers(1, 7),
    order=st.integers(0, 2**20),
)
def test_every_episode_is_the_one_that_a_plain_loop_plays(num_envs, lengths, mode, least, order):
    pool, least = make_pool(num_envs, order), min(least, num_envs)
    options = [{"length": length} for length in lengths]
    arguments = {"episodes": len(lengths), "seed": 5, "options": options, "mode": mode}
    steps, policy = run(pool, min_ready=least, **arguments)
    assert_played(by_episode(steps), 5, len(lengths), lengths)
    assert sum(env.resets for env in pool.envs) == len(lengths)
    for asked, busy in zip(policy.masks, policy.busy, strict=True):
        assert asked
        assert len(asked) >= least or not busy


def test_a_slow_environment_does_not_hold_up_the_others():
    pool = make_pool(3)
    pool.slow = [0]
    lengths = [1, 3, 3, 3, 3]
    _, policy = run(pool, episodes=5, seed=0, options=[{"length": n} for n in lengths])
    # All others have run all other episodes before its reset is waited for.
    assert sum(0 in asked for asked in policy.masks) == 1
    assert policy.masks[-1] == [0]
    assert sum(len(asked) for asked in policy.masks) == sum(lengths)


def test_auto_starts_the_next_episode_where_one_has_ended_and_wait_does_not():
    pool = make_pool(2)
    pool.slow = [1]
    run(pool, episodes=4, seed=0, options=HAND_LENGTHS)
    resets = [rows for name, rows in pool.calls if name == "reset"]
    assert resets == [[0, 1], [0], [0]]  # lengths 1, 2 and 1 in row 0, 3 in row 1
    pool = make_pool(2)
    pool.slow = [1]
    steps, _ = run(pool, episodes=4, seed=0, options=HAND_LENGTHS, mode="wait")
    assert [rows for name, rows in pool.calls if name == "reset"] == [[0, 1], [0, 1]]
    # Row 0 keeps what its last step left there until the round is over.
    frozen = [held["left"][0, 0] for step, held in steps if step.mask[1] and not step.first[1]]
    assert frozen[:3] == [0, 0, 0]


def test_starts_are_numbered_in_their_order():
    pool = make_pool(3)
    run(pool, episodes=15, seed=40)
    assert pool.seeds == list(range(40, 55))


def test_without_min_ready_one_is_enough():
    pool = make_pool(3)
    pool.slow = [1, 2]
    _, policy = run(pool, episodes=3, seed=0, options={"length": 4})
    assert policy.masks[:4] == [[0]] * 4


def test_the_end_of_a_run_does_not_wait_for_more_than_are_running():
    pool = make_pool(4)
    options = [{"length": n} for n in (1, 1, 1, 5)]
    _, policy = run(pool, episodes=4, seed=0, options=options, min_ready=4)
    assert policy.masks == [[0, 1, 2, 3], [3], [3], [3], [3]]


def test_the_first_action_of_each_episode_is_announced_once():
    for order in range(20):
        pool = make_pool(3, order)
        _, policy = run(pool, episodes=9, seed=0)
        announced = [
            [i for i in asked if flags[i]]
            for asked, flags in zip(policy.masks, policy.flushes, strict=True)
        ]
        assert sum(map(len, announced)) == 9
        # Every one in the row's own first step: the environment has not been stepped since.
        for i, env in enumerate(pool.envs):
            assert sum(i in rows for rows in announced) == env.resets
        # No flag speaks of a row that is not asked for.
        assert [sum(flags) for flags in policy.flushes] == [len(rows) for rows in announced]


def test_max_steps_counts_how_often_the_policy_is_asked_and_yields_what_is_under_way():
    pool = make_pool(3)
    steps, policy = run(pool, max_steps=5, seed=0, options={"length": 1})
    assert len(policy.masks) == 5
    asked = sum(map(len, policy.masks))
    assert sum(int(step.mask.sum()) for step, _ in steps if not step.first.any()) == asked


@both_modes
def test_an_episode_that_has_used_up_its_steps_counts_as_truncated(mode):
    options = [{"length": n} for n in (1, 5, 3, 6, 2, 4)]
    arguments = {"episodes": 6, "seed": 8, "options": options, "mode": mode}
    steps, _ = run(make_pool(2), max_episode_steps=3, **arguments)
    episodes = by_episode(steps)
    assert [len(episodes[k]["rewards"]) for k in range(6)] == [1, 3, 3, 3, 2, 3]
    assert [episodes[k]["terminated"] for k in range(6)] == [0, 0, 0, 0, 1, 0]
    assert [episodes[k]["truncated"] for k in range(6)] == [1, 1, 1, 1, 0, 1]


# Whom the policy is told of.


def test_only_a_parameter_of_that_name_gets_the_mask():
    def plain(infos):
        return ByNumber().get_action(infos)

    def with_others(infos, **kwargs):
        assert not kwargs
        return ByNumber().get_action(infos)

    def keyword(infos, *, mask):
        assert mask.any()
        return ByNumber().get_action(infos)

    def positional(mask, /):
        return ByNumber().get_action(mask)

    for act in (plain, with_others, keyword, positional):
        steps = []
        for step in rollout(make_pool(2), act, episodes=5, seed=1, schedule="ready"):
            steps.append((step, {key: value.copy() for key, value in step.infos.items()}))
        assert_played(by_episode(steps), 1, 5)


def test_lockstep_gives_no_mask():
    def act(infos, mask=None):
        assert mask is None
        return ByNumber().get_action(infos)

    for _ in rollout(FakePool([Countdown()]), act, episodes=2, seed=0):
        pass


def test_a_policy_with_state_by_row_plays_as_alone_where_it_heeds_the_mask():
    class Counting(ByNumber):
        """Its n-th action of an episode is n in both entries."""

        def __init__(self, num_envs):
            super().__init__()
            self.count = np.zeros(num_envs)

        def get_action(self, infos, mask=None):
            mask = np.ones(len(self.count), bool) if mask is None else mask
            self.count[mask & infos.get("_needs_flush", np.zeros_like(mask))] = 0
            self.count += mask
            return np.repeat(self.count[:, None], 2, axis=1)

    for order in range(10):
        rewards = {}
        pool = make_pool(3, order)
        act = Counting(3).get_action
        for step in rollout(pool, act, episodes=8, seed=3, schedule="ready"):
            for i in np.flatnonzero(step.mask & ~step.first):
                rewards.setdefault(int(step.episode[i]), []).append(float(step.rewards[i]))
        for k in range(8):
            env = Countdown()
            env.reset(seed=3 + k)
            alone = [env.step(np.array([n, n]))[1] for n in range(1, env.length + 1)]
            assert rewards[k] == [float(np.float32(reward)) for reward in alone]


# What the consumer may do.


def test_the_consumer_sees_the_end_before_the_reset():
    pool = make_pool(3)
    ends = 0
    for step in rollout(pool, ByNumber().get_action, episodes=9, seed=0, schedule="ready"):
        for i in np.flatnonzero(step.ended):
            ends += 1
            assert pool.envs[i].left == 0
            assert step.infos["left"][i, 0] == 0
            assert not pool.busy[i]
    assert ends == 9


@both_modes
def test_a_consumer_may_write_into_the_arrays(mode):
    names = ("mask", "first", "ended", "broken", "episode", "seeds", "terminateds", "truncateds")
    options = [{"length": n} for n in (1, 4, 3, 2, 2)]

    def lossy_run(spoil):
        pool = make_pool(2, 4)
        pool.lost_at_recv = {2: [0], 4: [1]}
        policy, seen = Asked(pool), []
        arguments = {"episodes": 5, "seed": 5, "options": options, "mode": mode}
        for step in rollout(pool, policy.get_action, schedule="ready", **arguments):
            for name in names:
                seen.append(getattr(step, name).tolist())
                if spoil:
                    getattr(step, name)[:] = 1
        return seen, policy.masks, policy.flushes, pool.calls

    assert lossy_run(spoil=True) == lossy_run(spoil=False)


def test_a_consumer_that_leaves_finds_nothing_under_way():
    pool = make_pool(3)
    pool.slow = [0, 1, 2]
    for step in rollout(pool, ByNumber().get_action, episodes=9, seed=0, schedule="ready"):
        if not step.first.any():
            break
    assert not pool.busy.any()


def test_what_the_consumer_puts_into_the_infos_is_seen_by_the_policy():
    seen = []

    def act(infos):
        seen.append(infos["goal"])
        return np.zeros((1, 2))

    arguments = {"max_steps": 3, "seed": 0, "options": {"length": 9}, "schedule": "ready"}
    for number, step in enumerate(rollout(make_pool(1), act, **arguments)):
        step.infos["goal"] = number
    assert seen == [0, 1, 2]


# Wrong arguments.


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"schedule": "later"}, ValueError, "schedule.*'lockstep', 'ready'.*'later'"),
        ({"min_ready": 1}, ValueError, "min_ready.*'ready'.*1 in lock-step"),
        ({"schedule": "lockstep", "min_ready": 2}, ValueError, "min_ready.*2"),
        ({"schedule": "ready", "min_ready": 0}, ValueError, r"min_ready.* in \[1, 2\], found 0"),
        ({"schedule": "ready", "min_ready": 3}, ValueError, r"min_ready.* in \[1, 2\], found 3"),
        ({"schedule": "ready", "min_ready": 1.5}, ValueError, "min_ready.*1.5"),
        ({"schedule": "ready", "min_ready": True}, ValueError, "min_ready.*True"),
        ({"schedule": "ready", "episodes": 0}, ValueError, "episodes.*0"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_moves(arguments, error, words):
    pool = make_pool(2)
    with pytest.raises(error, match=words):
        rollout(pool, ByNumber().get_action, **{"episodes": 1, **arguments})
    assert pool.calls == []


def test_a_pool_that_cannot_overlap_is_refused():
    pool = FakePool([Countdown()])
    with pytest.raises(TypeError, match=r"FakePool without send, send_reset, recv, busy"):
        rollout(pool, ByNumber().get_action, episodes=1, schedule="ready")


# Environments that were lost and built anew.


@settings(max_examples=150)
@given(
    data=st.data(),
    num_envs=st.integers(1, 5),
    mode=st.sampled_from(["auto", "wait"]),
    order=st.integers(0, 2**20),
)
def test_results_do_not_depend_on_what_was_lost(data, num_envs, mode, order):
    rows = st.lists(st.integers(0, num_envs - 1), max_size=num_envs, unique=True)
    pool = make_pool(num_envs, order)
    pool.lost_at_recv = data.draw(st.dictionaries(st.integers(0, 12), rows, min_size=1))
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=10))
    least = data.draw(st.integers(1, num_envs))
    options = [{"length": length} for length in lengths]
    arguments = {"episodes": len(lengths), "seed": 9, "options": options, "mode": mode}
    steps, _ = run(pool, min_ready=least, **arguments)
    assert_played(by_episode(steps), 9, len(lengths), lengths)


@both_modes
@pytest.mark.parametrize("moment", range(4))
def test_an_episode_that_the_consumer_lost_begins_again(mode, moment):
    pool, steps = make_pool(2), []
    pool.lost_at_recv = {99: []}  # so that the infos tell of losses
    arguments = {"episodes": 2, "seed": 4, "options": {"length": 3}, "mode": mode}
    number = 0
    for step in rollout(pool, ByNumber().get_action, schedule="ready", **arguments):
        steps.append((step, {key: value.copy() for key, value in step.infos.items()}))
        if not pool.busy[1]:
            pool._lost[1] |= number == moment
            number += 1
    assert number > moment
    assert_played(by_episode(steps), 4, 2, [3, 3])


# The same on real pools.


@pytest.fixture(scope="module")
def expert_alone():
    """The expert's episodes in lock-step on one environment in this process."""
    with World(POINT_GOAL, 1, add_pixels=False, num_workers=0) as world:
        world.set_policy(PointGoalExpert())
        return as_lists(world.evaluate(episodes=14, seed=0))


def as_lists(results):
    return {key: np.asarray(value).tolist() for key, value in results.items()}


@both_modes
@pytest.mark.parametrize(
    ("num_envs", "num_workers", "min_ready"),
    [(1, 0, 1), (5, 0, None), (5, 0, 5), (6, 1, 2), (5, 2, 1), (5, 2, 4), (4, 4, 1), (4, 4, 3)],
)
def test_the_expert_is_judged_as_in_lockstep(num_envs, num_workers, min_ready, mode, expert_alone):
    with World(POINT_GOAL, num_envs, add_pixels=False, num_workers=num_workers) as world:
        world.set_policy(PointGoalExpert())
        arguments = {"reset_mode": mode, "schedule": "ready", "min_ready": min_ready}
        assert as_lists(world.evaluate(14, seed=0, **arguments)) == expert_alone


@pytest.mark.parametrize(("num_envs", "num_workers"), [(3, 0), (4, 1), (4, 2), (3, 3)])
def test_collect_writes_the_same_bytes_as_in_lockstep(num_envs, num_workers, tmp_path):
    def collect(path, num_envs, num_workers, **arguments):
        world = World(POINT_GOAL, num_envs, image_shape=(16, 16), num_workers=num_workers)
        with world:
            world.set_policy(NoisyPolicy(PointGoalExpert(), scale=0.2))
            options = {"variation": ["all"]}
            collected = world.collect(
                path, 7, seed=3, options=options, progress=False, format="npz", **arguments
            )
        return as_lists({key: collected[key] for key in ("episode_lengths", "seeds")})

    expected = collect(tmp_path / "alone", 1, 0)
    for number, least in enumerate((None, 2)):
        path = tmp_path / str(number)
        assert collect(path, num_envs, num_workers, schedule="ready", min_ready=least) == expected
        files = sorted(file.name for file in path.iterdir())
        assert files == sorted(file.name for file in (tmp_path / "alone").iterdir())
        for name in files:
            assert_same_contents(path / name, tmp_path / "alone" / name)


def assert_same_contents(path, other):
    """Byte for byte, but for the time that rendering took."""
    if path.suffix != ".npz":
        assert path.read_bytes() == other.read_bytes()
        return
    with zipfile.ZipFile(path) as found, zipfile.ZipFile(other) as expected:
        assert found.namelist() == expected.namelist()
        for name in set(expected.namelist()) - {"render_time.npy"}:
            assert found.read(name) == expected.read(name), name


@both_modes
@pytest.mark.parametrize("num_workers", [0, 2, 3])
def test_a_dataset_is_evaluated_as_in_lockstep(num_workers, mode):
    dataset = record_point_goal(episodes=3, length=40)
    arguments = {
        "dataset": dataset,
        "episodes_idx": [0, 1, 2, 2, 1, 0, 1],
        "start_steps": [0, 3, 5, 1, 9, 2, 4],
        "goal_offset": 12,
        "eval_budget": 25,
        "reset_mode": mode,
    }
    found = []
    for num_envs, workers, schedule in ((1, 0, "lockstep"), (3, num_workers, "ready")):
        with World(POINT_GOAL, num_envs, add_pixels=False, num_workers=workers) as world:
            world.set_policy(PointGoalExpert())
            found.append(as_lists(world.evaluate(seed=0, schedule=schedule, **arguments)))
    assert found[0] == found[1]
    assert len(set(found[0]["episode_lengths"])) > 1


# Failures.


class Fails(Countdown):
    """Does a deed in its n-th step ever, counting those of all environments that share a file."""

    def __init__(self, path, number, deed):
        super().__init__()
        self.path, self.number, self.deed = path, number, deed

    def step(self, action):
        with open(self.path, "ab", 0) as file:
            file.write(b"x")
            if file.tell() == self.number:
                DEEDS[self.deed]()
        return super().step(action)


def failing_world(path, number, deed, num_workers, **arguments):
    world = World(
        lambda: Fails(path, number, deed), 4, add_pixels=False, num_workers=num_workers, **arguments
    )
    world.set_policy(ByNumber())
    return world


@both_modes
@pytest.mark.parametrize(
    ("deed", "num_workers", "number"),
    [("raise", 1, 6), ("raise", 4, 1), ("kill", 1, 11), ("kill", 2, 1), ("kill", 2, 6)],
)
def test_restarts_change_no_result(tmp_path, num_workers, deed, number, mode):
    with World(Countdown, 1, add_pixels=False, num_workers=0) as world:
        world.set_policy(ByNumber())
        expected = as_lists(world.evaluate(9, seed=2))
    world = failing_world(tmp_path / "steps", number, deed, num_workers, on_failure="restart")
    with world:
        with pytest.warns(UserWarning, match="built anew"):
            found = world.evaluate(9, seed=2, reset_mode=mode, schedule="ready")
        assert as_lists(found) == expected
        assert not world.envs.busy.any()


@pytest.mark.parametrize("num_workers", WORKER_COUNTS)
def test_an_exception_is_raised_and_the_pool_goes_on(tmp_path, num_workers):
    with failing_world(tmp_path / "steps", 5, "raise", num_workers) as world:
        with pytest.raises(EnvError, match="division by zero"):
            world.evaluate(9, seed=2, schedule="ready")
        assert not world.envs.busy.any()
        assert len(world.evaluate(9, seed=2, schedule="ready")["seeds"]) == 9


def test_a_worker_that_dies_is_raised(tmp_path):
    with failing_world(tmp_path / "steps", 5, "kill", 2) as world:
        with pytest.raises(WorkerDied):
            world.evaluate(9, seed=2, schedule="ready")
        assert world.envs.closed


def test_a_failure_after_the_consumer_has_left_becomes_a_warning():
    class Wears(FakeOverlappingPool):
        def recv(self, mask=None, min_envs=None):
            if min_envs is None:  # nobody but the end of a run waits for all
                self.busy[:] = False
                raise RuntimeError("worn out")
            return super().recv(mask, min_envs)

    pool = Wears([Countdown(), Countdown()])
    steps = rollout(pool, ByNumber().get_action, max_steps=9, seed=0, schedule="ready")
    pool.slow = [1]
    next(steps)
    assert pool.busy.tolist() == [False, True]
    with pytest.warns(UserWarning, match="nobody waited for: worn out"):
        steps.close()


def test_a_policy_in_the_workers_is_installed_again_after_a_restart(tmp_path):
    def policy():
        return lambda env, info: np.array([info["number"], info["number"] - 1.0])

    with World(Countdown, 1, add_pixels=False, num_workers=0) as world:
        world.set_policy(ByNumber())
        expected = as_lists(world.evaluate(9, seed=2))
    world = failing_world(tmp_path / "steps", 7, "kill", 2, on_failure="restart")
    with world:
        world.set_policy(WorkerPolicy(policy))
        with pytest.warns(UserWarning, match="built anew"):
            assert as_lists(world.evaluate(9, seed=2, schedule="ready")) == expected


def test_a_pool_serves_a_rollout_without_a_world():
    with EnvPool([Countdown] * 3, num_workers=3) as pool:
        steps, _ = run(pool, ByNumber(), episodes=7, seed=1)
    seen = {}
    for step, held in steps:
        for i in np.flatnonzero(step.mask):
            seen.setdefault(int(step.episode[i]), []).append(float(held["number"][i, 0]))
    for k in range(7):
        env = Countdown()
        _, info = env.reset(seed=1 + k)
        numbers = [info["number"]]
        while env.left:
            info = env.step(np.array([numbers[-1], numbers[-1] - 1]))[4]
            numbers.append(info["number"])
        assert seen[k] == numbers
