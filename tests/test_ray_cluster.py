"""Several nodes, one of which is lost in the middle: the result is that of an undisturbed run."""

import os

import gymnasium
import numpy as np
import pytest

from on_ray import ENABLED
from processes import has_gone
from swm_async import PointGoalExpert, World
from swm_async.backends.ray_cluster import on_this_machine_alone

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(ENABLED, reason="has a cluster of its own"),
    pytest.mark.timeout(300),
]

POINT_GOAL = "swm_async/PointGoal-v0"
ADDRESS = "127.0.0.1"
# With one CPU each, no two actors are on one node, and of three nodes one is to spare.
NODE = {
    "num_cpus": 1,
    "node_ip_address": ADDRESS,
    "object_store_memory": 100_000_000,
    "include_dashboard": False,
}


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Of this cluster nothing stays, which its own fixture sees to."""


@pytest.fixture
def cluster():
    import ray
    from ray.cluster_utils import Cluster

    with on_this_machine_alone(ray):
        made = Cluster(initialize_head=True, head_node_args=NODE)
        try:
            made.add_node(**NODE)
            made.add_node(**NODE)
            made.wait_for_nodes()
            ray.init(
                address=made.address,
                _node_ip_address=ADDRESS,
                log_to_driver=False,
                logging_level="error",
            )
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


class Saboteur(PointGoalExpert):
    """An expert that does something when it is asked for the n-th time."""

    def __init__(self, number, deed):
        super().__init__()
        self._left, self._deed = number, deed

    def get_action(self, infos):
        self._left -= 1
        if self._left == 0:
            self._deed()
        return super().get_action(infos)


class Located(gymnasium.Wrapper):
    """Says on which node the environment is, and in which process."""

    def node(self):
        import ray

        return ray.get_runtime_context().get_node_id()

    def pid(self):
        return os.getpid()


def test_a_node_that_is_lost_in_the_middle_changes_no_result(cluster):
    arguments = {"add_pixels": False, "max_episode_steps": 20}
    episodes = {"seed": 5, "options": {"variation": ["all"]}}
    with World(POINT_GOAL, 4, num_workers=0, **arguments) as world:
        world.set_policy(PointGoalExpert())
        expected = world.evaluate(10, **episodes)
    with World(
        POINT_GOAL,
        4,
        num_workers=2,
        backend="ray",
        on_failure="restart",
        ray_options={"placement": "spread"},
        extra_wrappers=[Located],
        **arguments,
    ) as world:
        before = world.envs.call("node")
        assert len(set(before)) == 2
        lost = next(n for n in cluster.list_all_nodes() if n.node_id in before and not n.head)
        pid = world.envs.call("pid")[before.index(lost.node_id)]

        def lose():
            cluster.remove_node(lost, allow_graceful=False)
            assert has_gone(pid, 30.0)  # an actor may outlive its node by a moment, and go on

        world.set_policy(Saboteur(12, lose))
        with pytest.warns(UserWarning, match="built anew after the worker of environments"):
            found = world.evaluate(10, **episodes)
        after = world.envs.call("node")
    assert len(set(after)) == 2
    assert lost.node_id not in after
    assert [a == b for a, b in zip(after, before, strict=True)] == [
        node != lost.node_id for node in before
    ]
    assert found.keys() == expected.keys()
    for key in expected:
        np.testing.assert_equal(found[key], expected[key])
