"""The arguments of ``backend="ray"``, and that nobody else needs Ray; runs without it."""

import sys
from functools import partial

import gymnasium
import pytest

from swm_async import EnvPool, VectorEnv
from swm_async.backends.ray_cluster import actor_options

make = partial(gymnasium.make, "CartPole-v1")


def test_without_ray_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for cls in (EnvPool, VectorEnv):
        with pytest.raises(ImportError, match=r"pip install 'swm_async\[ray\]'"):
            cls([make], num_workers=1, backend="ray")


def test_environments_in_this_process_need_no_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with EnvPool([make], num_workers=0, backend="ray") as pool:
        assert pool.num_workers == 0


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"cpus": 1}, ValueError, r"may have num_cpus, .*placement; found 'cpus'"),
        ({"placement": "scatter"}, ValueError, r'"pack" or "spread"; found \'scatter\''),
        ({"num_cpus": -1}, ValueError, "must be a number from 0; found -1"),
        ({"num_cpus": "two"}, ValueError, "must be a number from 0; found 'two'"),
        ([("num_cpus", 1)], TypeError, "must be a mapping; found list"),
    ],
)
def test_options_that_are_wrong_are_refused_before_ray_is_looked_for(
    monkeypatch, options, error, text
):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(error, match=text):
        EnvPool([make], num_workers=1, backend="ray", ray_options=options)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"backend": "dask"}, 'must be "process" or "ray"; found \'dask\''),
        ({"ray_options": {}}, 'ray_options are for backend="ray"'),
        ({"backend": "ray", "spin": True}, 'pin_workers and spin are for backend="process"'),
        ({"backend": "ray", "num_workers": 2}, r"from 0 to 1 \(num_envs\); found 2"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        EnvPool([make], **arguments)


def test_an_actor_takes_one_cpu_and_is_never_restarted_by_ray():
    assert actor_options(None) == {
        "num_cpus": 1,
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": "DEFAULT",
    }
    given = {"num_cpus": 0.5, "placement": "spread", "resources": {"disk": 1}}
    options = actor_options(given)
    assert (options["num_cpus"], options["resources"]) == (0.5, {"disk": 1})
    assert options["scheduling_strategy"] == "SPREAD"
    assert given == {"num_cpus": 0.5, "placement": "spread", "resources": {"disk": 1}}
