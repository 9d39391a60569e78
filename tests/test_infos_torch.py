"""Tensors in infos: docs/contract.md, Infos, with values worked out by hand.

Importing torch takes a worker long, so all tests share one pool of each kind. Its keys never go
away; each test uses a name of its own for those that it adds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from info_envs import Made, ScriptedEnv
from pools import Loan, open_descriptors, shared_pool
from swm_async import EnvPool
from swm_async.errors import EnvError

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> None:
    """The shared pool renews its memory while it lives; what it leaves is checked at its end."""
    if "lent" not in request.fixturenames:
        request.getfixturevalue("nothing_left_behind")


@pytest.fixture(scope="module", params=[0, 2])
def lent(request: pytest.FixtureRequest) -> Iterator[Loan]:
    with shared_pool(request, [ScriptedEnv] * 3, num_workers=request.param) as loan:
        yield loan


Play = Callable[..., EnvPool]


@pytest.fixture
def play(lent: Loan) -> Play:
    """Gives each of the three environments its script."""

    def prepare(pool: EnvPool) -> None:
        pool.call("load", [])
        pool.reset()

    def load(*scripts: Any) -> EnvPool:
        pool = lent.ready(prepare)
        pool.call_each("load", [(script,) for script in scripts])
        return pool

    return load


def step(pool: EnvPool, mask: Any = None) -> dict[str, Any]:
    return pool.step(np.zeros(pool.num_envs, np.int64), mask=mask)[-1]


# Torch is imported only where a tensor is made: this module is read without it too.


def tensor(values: Any, dtype: str) -> Any:
    import torch

    return torch.tensor(values).to(getattr(torch, dtype))


def with_gradient(values: Any) -> Any:
    return tensor(values, "float32").requires_grad_() * 1.0


def parameter(values: Any) -> Any:
    import torch

    return torch.nn.Parameter(tensor(values, "float32"))


def slice_of_a_large_one(values: Any) -> Any:
    import torch

    large = torch.zeros(1000, len(values))
    large[500] = tensor(values, "float32")
    return large[500]


def every_other(values: Any) -> Any:
    return tensor(values, "float32").repeat_interleave(2)[::2]


def conjugated(values: Any) -> Any:
    return tensor(values, "complex64").conj()


def sparse() -> Any:
    return tensor([[1.0, 0.0], [0.0, 2.0]], "float32").to_sparse()


def quantized() -> Any:
    import torch

    return torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)


def nested() -> Any:
    import torch

    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def made(values: Any, dtype: str = "float32") -> Made:
    return Made(tensor, (values, dtype))


DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "float8_e5m2", "complex64", "complex128"),
)


def as_numbers(tensor: Any) -> Any:
    """Elements of any dtype as complex numbers."""
    import torch

    return tensor.to(torch.complex128).tolist()


def is_filled(tensor: Any) -> bool:
    import torch

    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return bool(tensor.to(torch.complex128).isnan().all())
    return not as_numbers(tensor) or set(np.ravel(as_numbers(tensor))) == {0}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_is_a_live_tensor_with_a_row_per_environment(play: Play, dtype: str) -> None:
    import torch

    first, second = {dtype: made([0, 1], dtype)}, {dtype: made([1, 0], dtype)}
    pool = play([first, second], [second, first, {}], [{}])
    _, infos = pool.reset()
    found = infos[dtype]
    assert type(found) is torch.Tensor
    assert found.dtype is getattr(torch, dtype)
    assert found.shape == (3, 1, 2)
    assert as_numbers(found[:2]) == [[[0, 1]], [[1, 0]]]
    assert is_filled(found[2])
    assert infos["_" + dtype].tolist() == [True, True, False]
    infos = step(pool, [True, True, False])
    assert infos[dtype] is found
    assert as_numbers(found[:2]) == [[[1, 0]], [[0, 1]]]
    pool.reset(mask=[False, True, False])
    assert as_numbers(found[0]) == [[1, 0]]
    assert is_filled(found[1])
    pool.reset()
    assert as_numbers(found[0]) == [[1, 0]]  # replaced arrays keep their values


@pytest.mark.parametrize("make", [with_gradient, parameter, slice_of_a_large_one, every_other])
def test_an_odd_tensor_is_stored_like_a_plain_one(play: Play, make: Any) -> None:
    import torch

    key = make.__name__
    pool = play([{key: Made(make, ([1.0, 2.0],))}, {key: Made(make, ([3.0, 4.0],))}], [], [])
    found = pool.reset()[1][key]
    assert type(found) is torch.Tensor
    assert found[0].tolist() == [[1.0, 2.0]]
    assert step(pool)[key] is found
    assert not found.requires_grad
    assert found[0].tolist() == [[3.0, 4.0]]


def test_a_conjugated_view_is_stored_by_its_values(play: Play) -> None:
    pool = play([{"conjugated": Made(conjugated, ([1 + 2j],))}] * 2, [], [])
    pool.reset()
    assert step(pool)["conjugated"][0].tolist() == [[1 - 2j]]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1,)], ids=str)
def test_a_tensor_may_have_no_axes_or_no_elements(play: Play, shape: tuple[int, ...]) -> None:
    import torch

    key = f"shape {shape}"
    info = {key: made(np.zeros(shape).tolist())}
    pool = play([info, info], [info], [])
    found = pool.reset()[1][key]
    assert found.shape == (3, 1, *shape)
    assert found.dtype is torch.float32
    assert step(pool)[key] is found


def test_tensors_of_two_dtypes_widen_as_torch_promotes_them(play: Play) -> None:
    import torch

    first = [{"wide": made([1], "int32")}, {"wide": made([0.5], "float16")}]
    pool = play(first, [{"wide": made([3], "int32")}] * 2, [])
    before = pool.reset()[1]["wide"]
    pool.call("load", [{"wide": made([0.25], "bfloat16")}], mask=[False, False, True])
    found = step(pool, [True, False, True])["wide"]
    # float16 and bfloat16 have float32 in common.
    assert found.dtype is torch.float32
    assert found.tolist() == [[[0.5]], [[3.0]], [[0.25]]]
    assert before.tolist()[1:] == [[[3]], [[0]]]
    _, infos = pool.reset(mask=[True, False, False])
    assert infos["wide"] is found
    assert is_filled(found[0])


def test_a_row_without_a_value_is_filled_anew_when_its_tensor_widens(play: Play) -> None:
    pool = play([{"filled": made([1], "int32")}, {"filled": made([0.5])}], [], [])
    assert as_numbers(pool.reset()[1]["filled"][1:]) == [[[0]], [[0]]]
    assert is_filled(step(pool)["filled"][1:])


def test_a_tensor_that_would_be_rounded_makes_a_list(play: Play) -> None:
    import torch

    first = [{"exact": made([2**24 + 1], "int64")}, {"exact": made([1], "int64")}]
    second = [{"exact": made([1], "int64")}, {"exact": made([0.5], "float32")}]
    pool = play(first, second, [])
    pool.reset()
    with pytest.warns(UserWarning, match=r"tensor of int64 \(1,\) and a tensor of float32"):
        found = step(pool, [False, True, False])["exact"]
    assert [row[0].tolist() for row in found[:2]] == [[2**24 + 1], [0.5]]
    assert [row[0].dtype for row in found[:2]] == [torch.int64, torch.float32]
    assert found[2] == [None]


def test_dtypes_without_a_promotion_make_a_list(play: Play) -> None:
    script = [{"eighth": made([1], "float8_e5m2")}, {"eighth": made([1], "float32")}]
    pool = play(script, [{"eighth": made([1], "float8_e5m2")}] * 2, [])
    pool.reset()
    with pytest.warns(UserWarning, match="'eighth' becomes a list"):
        found = step(pool, [True, False, False])["eighth"]
    assert [str(row[0].dtype) for row in found[:2]] == ["torch.float32", "torch.float8_e5m2"]


def test_arrays_and_tensors_under_one_key_make_a_list(play: Play) -> None:
    import torch

    array, gradient = np.ones(1, np.float32), Made(with_gradient, ([2.0],))
    script = [{"mixed": value} for value in (made([1.0]), array, gradient)]
    pool = play(script, [{"mixed": made([5.0])}], [])
    before = pool.reset()[1]["mixed"]
    with pytest.warns(UserWarning, match="a tensor of float32 .* and an array of float32"):
        infos = step(pool)
    assert type(infos["mixed"][0][0]) is np.ndarray
    assert type(infos["mixed"][1][0]) is torch.Tensor
    assert before[1].tolist() == [[5.0]]
    found = step(pool)["mixed"][0][0]
    assert not found.requires_grad
    assert found.tolist() == [2.0]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("make", [sparse, quantized, nested])
def test_other_tensors_are_objects(play: Play, make: Any) -> None:
    pool = play([{make.__name__: Made(make)}] * 2, [], [])
    pool.reset()
    assert str(step(pool)[make.__name__][0][0]) == str(make())


def inside(makers: dict[str, Made]) -> dict[str, Any]:
    tensors = {name: maker.make(*maker.arguments) for name, maker in makers.items()}
    tensors["slice"] = slice_of_a_large_one([1.0, 2.0])
    tensors["gradient"] = with_gradient([1.0])
    return tensors


def test_tensors_inside_objects_are_detached_and_bring_their_own_elements_only(
    play: Play,
) -> None:
    makers = {dtype: made([1, 0], dtype) for dtype in DTYPES}
    pool = play([{"inside": Made(inside, (makers,))}] * 2, [], [])
    pool.reset()
    found = step(pool)["inside"][0][0]
    for dtype in DTYPES:
        assert str(found[dtype].dtype) == f"torch.{dtype}"
        assert as_numbers(found[dtype]) == [1, 0]
    assert found["slice"].tolist() == [1.0, 2.0]
    assert found["slice"].untyped_storage().nbytes() == 8
    assert not found["gradient"].requires_grad


def test_a_row_whose_reset_failed_keeps_its_tensor_of_a_dtype_that_torch_cannot_index(
    play: Play,
) -> None:
    first = [{"kept": made([1], "uint16")}, ValueError("no")]
    pool = play(first, [{"kept": made([2], "uint16")}, {"kept": made([3], "uint16")}], [])
    before = pool.reset()[1]["kept"]
    with pytest.raises(EnvError, match="no") as caught:
        pool.reset()
    found = caught.value.result[1]["kept"]
    assert found is not before
    assert as_numbers(found) == [[[1]], [[3]], [[0]]]


def test_tensors_need_no_descriptors_of_their_own(play: Play) -> None:
    pool = play([{}, {f"number {k}": made([1.0]) for k in range(50)}], [], [])
    pool.reset()
    before = open_descriptors(), len(pool.call("descriptors")[0])
    step(pool)
    step(pool)
    after = open_descriptors(), len(pool.call("descriptors")[0])
    # All of them lie in one block, with one descriptor and at most one for its mapping.
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1] + 2


def test_private_copies_of_tensors_change_no_more() -> None:
    script = [{"a": made([1.0]), "b": Made(inside, ({},))}, {"a": made([2.0])}]
    with EnvPool([lambda: ScriptedEnv(script)], num_workers=0, copy=True) as pool:
        _, before = pool.reset()
        after = step(pool)
        assert before["a"].tolist() == [[[1.0]]]
        assert after["a"].tolist() == [[[2.0]]]
        after["a"].zero_()
        after["b"][0][0]["slice"].zero_()
        assert pool.infos["a"].tolist() == [[[2.0]]]
        assert pool.infos["b"][0][0]["slice"].tolist() == [1.0, 2.0]


WITHOUT_TENSORS = """
import sys
import gymnasium
import numpy as np
from swm_async import EnvPool

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {"a": np.zeros(3), "b": "text", "c": {"d": 1}}
    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {"a": np.ones(3), "b": 0.5}
    def has_torch(self):
        return "torch" in sys.modules

with EnvPool([Env, Env], num_workers=2) as pool:
    pool.reset()
    pool.step([0, 0])
    print(pool.call("has_torch"), "torch" in sys.modules)
"""


def test_torch_is_not_imported_unless_an_environment_reports_a_tensor() -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "workers")])
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORS],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.stdout == "[False, False] False\n", run.stderr
