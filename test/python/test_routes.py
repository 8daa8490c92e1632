"""Routes: arrays that stay right, files, JSON, and what is refused."""

import base64
import io
import pickle

import numpy as np
import pytest
from conftest import SHAPE, run_step

import moetap
from moetap import RowState

SLOTS = list(range(8))


@pytest.fixture
def routes(pair):
    """Rows of positions [0, 8), all present, and their ids."""
    capturer, reader = pair
    ids = run_step(capturer, 1, SLOTS)
    reader.wait_for(1)
    return reader.read_blocks([0, 1], 4, range(8), (1, 1)), ids


def missing(start: int, end: int) -> moetap.Routes:
    return moetap.Routes(SHAPE, range(start, end))


def test_views(routes) -> None:
    rows, ids = routes
    assert rows.ids.shape == (8, 3, 2) and rows.ids.dtype == np.uint8 and (rows.ids == ids).all()
    assert rows.rows.shape == (8, 6) and (rows.rows.reshape(8, 3, 2) == ids).all()
    assert (rows.states == RowState.present).all() and rows.states.dtype == np.uint8
    for view in (rows.ids, rows.rows, rows.states):
        assert not view.flags.writeable and not view.flags.owndata
    assert (rows.positions, rows.start, rows.end, len(rows)) == (range(0, 8), 0, 8, 8)
    assert rows.all_present and rows.count(RowState.present) == 8 and rows.state(7) == RowState.present
    assert rows.require_present() is rows and rows.shape == SHAPE
    assert "8 present" in repr(rows)
    with pytest.raises(moetap.RangeError):
        rows.state(8)
    with pytest.raises(moetap.ArgumentError, match="no weights"):
        _ = rows.weights


def test_views_outlive_the_rows_and_never_change(routes) -> None:
    rows, ids = routes
    view, states = rows.ids, rows.states
    rows.append(missing(8, 200))
    assert len(rows) == 200 and view.shape == (8, 3, 2)
    del rows
    assert (view == ids).all() and len(states) == 8


def test_rows_that_are_not_present_have_no_ids() -> None:
    rows = missing(3, 5)
    with pytest.raises(moetap.RowsNotPresent, match="missing"):
        _ = rows.ids
    with pytest.raises(moetap.RowsNotPresent):
        rows.require_present()
    with pytest.raises(moetap.RowsNotPresent):
        rows.to_ids("uint8")
    assert (rows.to_ids() == -1).all() and (rows.rows == 0xFF).all()
    assert rows.count(RowState.missing) == 2 and not rows.all_present


def test_conversions(routes) -> None:
    rows, ids = routes
    for dtype in ("uint8", "uint16", "int16", "int32", "int64"):
        converted = rows.to_ids(dtype)
        assert converted.dtype == dtype and (converted == ids).all() and converted.flags.writeable
    hidden = rows.to_ids("int32", all_hidden=True, dense_id=-1)
    assert hidden.shape == (8, 6, 2) and (hidden[:, [1, 2, 4]] == ids).all()
    assert (hidden[:, [0, 3, 5]] == -1).all()
    assert (rows.to_ids("uint8", all_hidden=True, dense_id=0)[:, 0] == 0).all()
    with pytest.raises(moetap.ArgumentError, match="'int16'"):
        rows.to_ids("float32")


def test_files(routes) -> None:
    rows, ids = routes
    for all_hidden in (False, True):
        file = rows.to_npy("int16", all_hidden=all_hidden)
        loaded = np.load(io.BytesIO(file))
        assert (loaded == rows.to_ids(all_hidden=all_hidden)).all()
        back = moetap.Routes.from_npy(file, SHAPE, start=3)
        assert back.positions == range(3, 11) and (back.ids == ids).all()
    assert base64.b64decode(rows.to_npy_base64("uint8")) == rows.to_npy("uint8")
    with pytest.raises(moetap.ArgumentError):
        moetap.Routes.from_npy(b"no file", SHAPE, start=0)
    with pytest.raises(TypeError):
        moetap.Routes.from_npy("text", SHAPE, start=0)


def test_json_and_pickle(routes) -> None:
    rows, ids = routes
    rows.append(missing(8, 9))
    for back in (moetap.Routes.from_json(rows.to_json(), SHAPE), pickle.loads(pickle.dumps(rows))):
        assert back.positions == range(0, 9) and back.states.tolist() == [0] * 8 + [1]
        assert (back.to_ids()[:8] == ids).all() and back.shape == SHAPE
    with pytest.raises(moetap.ArgumentError):
        moetap.Routes.from_json("{}", SHAPE)
    with pytest.raises(moetap.ArgumentError):
        moetap.Routes.from_json(rows.to_json(), SHAPE.with_layers([1, 2]))


def test_pickles_that_contradict_themselves() -> None:
    rows = moetap.Routes.__new__(moetap.Routes)
    for state in [(SHAPE, 0, 2, b"\0" * 12, b"\0"), (SHAPE, 0, 2, b"\0" * 11, b"\0\0"),
                  (SHAPE, 2, 0, b"", b""), (SHAPE, 0, 1, b"\0" * 6, b"\7")]:
        with pytest.raises(moetap.ArgumentError):
            rows.__setstate__(state)


def test_split_take_and_append(routes) -> None:
    rows, ids = routes
    first, second = rows.split(3)
    assert first.positions == range(0, 3) and second.positions == range(3, 8)
    first.append(second)
    assert (first.ids == ids).all()
    some = rows.take(layers=[1, 4], tokens=range(2, 5))
    assert some.shape.moe_layers == (1, 4) and (some.ids == ids[2:5, [0, 2]]).all()
    assert (rows.take(tokens=(7, 8)).ids == ids[7:]).all() and len(rows.take(tokens=range(4, 4))) == 0
    with pytest.raises(moetap.ArgumentError, match="overlap"):
        rows.append(rows)
    with pytest.raises(moetap.ArgumentError, match="gap"):
        rows.append(missing(9, 10))
    with pytest.raises(moetap.ArgumentError):
        rows.append(rows.take(layers=[1]))
    with pytest.raises(moetap.RangeError):
        rows.take(tokens=range(2, 9))
    with pytest.raises(moetap.ArgumentError):
        rows.take(layers=[3])
    with pytest.raises(moetap.RangeError):
        rows.split(9)
    with pytest.raises(moetap.RangeError):
        moetap.Routes(SHAPE, (3, 2))


@pytest.mark.parametrize("weight_type", ["float32", "bfloat16"])
def test_weights(endpoint, weight_type) -> None:
    shape = SHAPE.with_weights(weight_type)
    ends = endpoint.replace(shape=shape)
    weights = np.random.default_rng(1).random((3, 8, 2), np.float32)
    with moetap.Capturer(ends, "host") as capturer, moetap.Reader(ends) as reader:
        capturer.bind_all()
        ids = np.tile(np.array([2, 5], np.int32), (3, 8, 1))
        with capturer.step(1, 8) as step:
            for i, layer in enumerate(shape.moe_layers):
                capturer.capture(layer, ids[i], weights[i])
            step.publish(SLOTS)
        reader.wait_for(1)
        rows = reader.read_blocks([0, 1], 4, range(8), (1, 1))
        with pytest.raises(moetap.ArgumentError, match="weights"), capturer.step(2, 8):
            capturer.capture(1, ids[0])
    expected = weights.transpose(1, 0, 2)
    got = rows.weights
    assert got.shape == (8, 3, 2) and not got.flags.writeable
    if weight_type == "bfloat16":
        assert got.dtype == np.uint16
        got = (got.astype(np.uint32) << 16).view(np.float32)
        assert np.allclose(got, expected, rtol=2**-8)
    else:
        assert (got == expected).all()
    assert (rows.ids == ids.transpose(1, 0, 2)).all()
    assert (rows.to_weights() == rows.weights).all()
    back = moetap.Routes.from_npy(rows.to_npy("int32"), shape, start=0, weights=rows.weights_to_npy())
    assert (back.weights == rows.weights).all() and (back.ids == rows.ids).all()
    absent = moetap.Routes(shape, range(2)).weights
    assert (absent == 0xFFFF).all() if weight_type == "bfloat16" else np.isnan(absent).all()


def test_unverified_rows_are_trusted_on_demand(endpoint) -> None:
    wire = endpoint.replace(shm_layout="wire")
    with moetap.Capturer(wire, "host", transport="shm") as capturer, moetap.Reader(wire, "shm") as reader:
        capturer.bind_all()
        ids = run_step(capturer, 1, SLOTS)
        rows = reader.read_blocks([0, 1], 4, range(8), (1, 1))
    assert rows.count(RowState.unverified) == 8
    with pytest.raises(moetap.RowsNotPresent):
        _ = rows.ids
    rows.trust_unverified()
    assert (rows.ids == ids).all()
