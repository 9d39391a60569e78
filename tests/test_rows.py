"""Rows of pools whose workers share no memory with them, against plain loops, without Ray."""

import numpy as np
from hypothesis import HealthCheck, given, settings

import test_infos_property
from swm_async import EnvPool
from swm_workers.rows import Columns, Frame, pack_frame, pack_reply, unpack_frame, unpack_reply
from test_pool_property import FACTORIES, programs, run

# The fake is the same for every example.
per_test = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_a_frame_comes_out_as_it_went_in():
    frame = Frame(3, 5, True, 70_000, b"payload", b"rows")
    found = unpack_frame(pack_frame(frame))
    assert found[:4] == frame[:4]
    assert (bytes(found.payload), bytes(found.rows)) == (b"payload", b"rows")


def test_columns_are_packed_one_after_the_other():
    first = np.array([[1, 2], [3, 4], [5, 6]], np.uint8)
    empty, second = np.empty((3, 0), np.uint8), np.array([[7], [8], [9]], np.uint8)
    columns = Columns([first, empty, second])
    assert columns.row_bytes == 3
    reply = pack_reply({"a": 1}, columns, np.array([0, 2]), 2)
    result, packed = unpack_reply(reply)
    assert result == {"a": 1}
    assert packed.tolist() == [1, 2, 5, 6, 7, 9]
    columns.scatter(np.array([1, 2]), packed, np.array([True, False]))
    assert first.tolist() == [[1, 2], [1, 2], [5, 6]]
    assert second.tolist() == [[7], [7], [9]]
    columns.scatter(None, np.arange(9, dtype=np.uint8), np.array([True, False, True]))
    assert first.tolist() == [[0, 1], [1, 2], [4, 5]]
    assert second.tolist() == [[6], [7], [8]]
    assert unpack_reply(pack_reply(None, None, None, 0).tobytes())[0] is None


@per_test
@given(programs(0, 40))
def test_a_pool_gives_what_a_plain_loop_gives(fake_ray, program):
    with EnvPool(FACTORIES, num_workers=2) as pool:
        run(program, pool)


def test_infos_are_those_of_the_model_whatever_environments_report(fake_ray):
    test_infos_property.test_infos_are_those_of_the_model_whatever_environments_report(2)
