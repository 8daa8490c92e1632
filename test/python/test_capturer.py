"""Capturer: steps, graphs, arrays of all kinds, devices and streams."""

import sys
import types

import numpy as np
import pytest
from conftest import SHAPE, picks, run_step

import moetap
from moetap import RowState


@pytest.fixture
def capturer(endpoint):
    with moetap.Capturer(endpoint, "host", transport="shm") as made:
        made.bind_all()
        yield made


def rows_of(endpoint, step, tokens=8):
    with moetap.Reader(endpoint, "shm") as reader:
        reader.wait_for(step)
        return reader.read_blocks([0, 1], 4, range(tokens), (1, step))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int16, np.uint16, np.uint8])
def test_types(capturer, endpoint, dtype) -> None:
    ids = picks(8).astype(dtype)
    run_step(capturer, 1, list(range(8)), ids)
    assert (rows_of(endpoint, 1).ids == ids.transpose(1, 0, 2)).all()


def test_arrays_of_all_kinds(capturer, endpoint) -> None:
    ids = picks(8)
    wide = np.zeros((8, 7), np.int32)
    wide[:, :2] = ids[0]
    read_only = ids[1].copy()
    read_only.flags.writeable = False

    class OnlyDlpack:
        def __dlpack__(self, **_):
            return ids[2].__dlpack__()

        def __dlpack_device__(self):
            return ids[2].__dlpack_device__()

    with capturer.step(1, 8) as step:
        capturer.capture(1, wide[:, :2])
        capturer.capture(2, read_only)
        capturer.capture(4, OnlyDlpack())
        step.publish(tuple(range(8)))
    assert (rows_of(endpoint, 1).ids == ids.transpose(1, 0, 2)).all()


def test_host_arrays_may_be_overwritten_and_freed_at_once(endpoint) -> None:
    with moetap.Capturer(endpoint, "host") as capturer, moetap.Reader(endpoint) as reader:
        capturer.bind_all()
        for number in range(1, 40):
            ids, slots = picks(8, number), np.arange(8)
            expected = ids.transpose(1, 0, 2).copy()
            with capturer.step(number, 8) as step:
                for i, layer in enumerate(SHAPE.moe_layers):
                    capturer.capture(layer, ids[i])
                    ids[i] = -7
                del ids
                step.publish(slots)
                slots[:] = -7
            reader.wait_for(number)
            assert (reader.read_blocks([0, 1], 4, range(8), (number, number)).ids == expected).all()
        assert capturer.take_failures() == []


def test_device_arrays_are_read_in_stream_order(capturer, endpoint) -> None:
    ids = picks(8)
    arrays = [capturer.device.empty((8, 2), "int32") for _ in range(3)]
    slots = capturer.device.empty(8, "int64")
    slots.numpy()[:] = np.arange(8)
    with capturer.step(1, 8) as step:
        for layer, array, layer_ids in zip(SHAPE.moe_layers, arrays, ids, strict=True):
            array.numpy()[:] = layer_ids
            capturer.capture(layer, array if layer < 4 else array.numpy()[:])
        step.publish(slots)
    del array, arrays, slots
    assert (rows_of(endpoint, 1).ids == ids.transpose(1, 0, 2)).all()


def test_graphs(capturer, endpoint) -> None:
    device = capturer.device
    stream = device.make_stream()
    arrays = [device.empty((8, 2)) for _ in range(3)]
    views = [array.numpy() for array in arrays]
    with capturer.graph(8, stream):
        stream.begin_capture()
        with pytest.raises(moetap.ArgumentError, match="host memory"):
            capturer.capture(1, picks(8)[0])
        for layer, array in zip(SHAPE.moe_layers, arrays, strict=True):
            capturer.capture(layer, array)
        graph = stream.end_capture()
    del arrays, array
    for number in (1, 2):
        ids = picks(8, number)
        for view, layer_ids in zip(views, ids, strict=True):
            view[:] = layer_ids
        with capturer.step(number, 6, padded_tokens=8, stream=stream) as step:
            stream.launch(graph)
            step.publish(list(range(6)))
        stream.synchronize()
        assert stream.idle
        assert (rows_of(endpoint, number, 6).ids == ids.transpose(1, 0, 2)[:6]).all()
    del views  # the graph keeps the memory that it reads
    with capturer.step(3, 8, stream=stream) as step:
        stream.launch(graph)
        step.publish(list(range(8)))
    assert capturer.take_failures() == []


def test_a_layer_that_was_not_captured(capturer, endpoint) -> None:
    with capturer.step(1, 4) as step:
        capturer.capture(1, picks(4)[0])
        step.publish(list(range(4)))
    [failure] = capturer.take_failures()
    assert isinstance(failure, moetap.StepFailed) and failure.step == 1 and "2, 4" in failure.reason
    assert capturer.take_failures() == [] and capturer.num_failed == 1
    with pytest.raises(moetap.StepFailed, match="2, 4"):
        rows_of(endpoint, 1, 4)


def test_a_forward_pass_that_raises(capturer) -> None:
    with pytest.raises(ZeroDivisionError), capturer.step(1, 4):
        capturer.capture(1, picks(4)[0])
        1 / 0
    assert [failure.step for failure in capturer.take_failures()] == [1]
    run_step(capturer, 2, list(range(4)))
    assert capturer.take_failures() == []


def test_wanted_tokens(capturer, endpoint) -> None:
    run_step(capturer, 1, list(range(8)), wanted=[range(0, 2), (4, 6)])
    assert rows_of(endpoint, 1).states.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    with capturer.step(2, 8, wanted=[]) as step:
        for layer in SHAPE.moe_layers:
            capturer.capture(layer, picks(8)[0])
        step.publish(None)
    with pytest.raises(moetap.ArgumentError, match="ranges"):
        run_step(capturer, 3, list(range(8)), wanted=[range(4, 6), range(0, 2)])


def test_steps_without_a_scope(capturer, endpoint) -> None:
    ids = picks(4)
    capturer.begin_step(1, 4)
    for layer, layer_ids in zip(SHAPE.moe_layers, ids, strict=True):
        capturer.capture(layer, layer_ids)
    capturer.publish(np.arange(4))
    capturer.finalize(1)
    assert (rows_of(endpoint, 1, 4).ids == ids.transpose(1, 0, 2)).all()
    capturer.begin_step(2, 4)
    with pytest.raises(moetap.StateError, match="step is open"):
        capturer.begin_step(3, 4)
    capturer.give_up()
    capturer.give_up()
    assert [failure.step for failure in capturer.take_failures()] == [2]


@pytest.mark.parametrize(("call", "error"), [
    (lambda c: c.capture(1, picks(4)[0].astype(np.float32)), TypeError),
    (lambda c: c.capture(1, picks(4)[0].astype(bool)), TypeError),
    (lambda c: c.capture(1, picks(4)[0].astype(">i4")), TypeError),
    (lambda c: c.capture(1, picks(4)[0][:, ::-1]), moetap.ArgumentError),
    (lambda c: c.capture(1, picks(4)[0][::-1]), moetap.ArgumentError),
    (lambda c: c.capture(1, picks(8)[0][::2]), None),
    (lambda c: c.capture(1, picks(4)), moetap.ArgumentError),
    (lambda c: c.capture(1, picks(4)[0][0]), moetap.ArgumentError),
    (lambda c: c.capture(1, np.int32(3)), moetap.ArgumentError),
    (lambda c: c.capture(1, picks(4)[0][:3]), moetap.ArgumentError),
    (lambda c: c.capture(1, picks(4)[0][:, :1]), moetap.ArgumentError),
    (lambda c: c.capture(1, np.broadcast_to(picks(4)[0][0], (4, 2))), moetap.ArgumentError),
    (lambda c: c.capture(1, np.frombuffer(bytes(33), np.uint8)[1:].view(np.int32).reshape(4, 2)),
     moetap.ArgumentError),
    (lambda c: c.capture(1, "ids"), TypeError),
    (lambda c: c.capture(1, 3), TypeError),
    (lambda c: c.capture(1, None), TypeError),
    (lambda c: c.capture(1, [[1, 2]] * 4), TypeError),
    (lambda c: c.capture(3, picks(4)[0]), moetap.RangeError),
    (lambda c: c.capture("1", picks(4)[0]), TypeError),
    (lambda c: c.capture(1, picks(4)[0], np.ones((4, 2), np.float32)), moetap.ArgumentError),
    (lambda c: c.capture(1, picks(4)[0], np.ones((4, 2), np.float64)), TypeError),
    (lambda c: c.capture(1, picks(4)[0], np.ones((3, 2), np.float32)), moetap.ArgumentError),
    (lambda c: c.publish([0, 1, 2]), moetap.ArgumentError),
    (lambda c: c.publish(np.arange(4, dtype=np.int32)), TypeError),
    (lambda c: c.publish(np.arange(8)[::2]), moetap.ArgumentError),
    (lambda c: c.publish(np.zeros((2, 2), np.int64)), moetap.ArgumentError),
    (lambda c: c.publish(7), TypeError),
    (lambda c: c.publish([0.5] * 4), None),
])
def test_bad_arguments_of_a_step(capturer, call, error) -> None:
    capturer.begin_step(1, 4)
    if error is None:
        call(capturer)
    else:
        with pytest.raises(error):
            call(capturer)
    capturer.give_up()
    run_step(capturer, 2, list(range(4)))
    assert [failure.step for failure in capturer.take_failures() if failure.step == 2] == []


@pytest.mark.parametrize("ids", [16, -2, 2**31 - 1])
def test_ids_of_no_expert_fail_the_step(capturer, ids) -> None:
    bad = picks(4)
    bad[1, 2, 0] = ids
    run_step(capturer, 1, list(range(4)), bad)
    assert str(ids) in capturer.take_failures()[0].reason


def test_bad_steps(capturer) -> None:
    with pytest.raises(moetap.RangeError, match="33"):
        capturer.begin_step(1, 33)
    with pytest.raises(moetap.ArgumentError):
        capturer.begin_step(1, 4, padded_tokens=3)
    with pytest.raises(moetap.RangeError, match="the step is -1"):
        capturer.step(-1, 4)
    step = capturer.step(1, 4)
    with pytest.raises(moetap.StateError, match="with"):
        step.publish([0] * 4)
    with step:
        assert step.open and step.step == 1
    assert not step.open
    with pytest.raises(moetap.StateError):
        step.__enter__()
    with pytest.raises(moetap.StateError, match="step numbers only grow"):
        capturer.begin_step(1, 4)
    with pytest.raises(moetap.StateError, match="without an open step"):
        capturer.capture(1, picks(4)[0])


def test_binding(endpoint) -> None:
    with moetap.Capturer(endpoint, "host") as capturer:
        capturer.bind(1)
        assert capturer.bound(1) and not capturer.bound(2)
        with pytest.raises(moetap.StateError, match="bound already"):
            capturer.bind(1)
        with pytest.raises(moetap.RangeError):
            capturer.bind(3)
        with pytest.raises(moetap.StateError, match="2, 4|not bound"):
            capturer.begin_step(1, 4)
        output = capturer.route_output(1)
        assert output.shape == (32, 2) and output.dtype == "int16"
        output.numpy()[:] = 0
        assert "Capturer of" in repr(capturer) and capturer.shape == SHAPE


def test_options(endpoint) -> None:
    with pytest.raises(moetap.ArgumentError, match="on_full is an option of the 'device' transport"):
        moetap.Capturer(endpoint, "host", transport="shm", on_full="drop")
    with pytest.raises(moetap.ArgumentError, match="'device', 'shm', 'capture_only'"):
        moetap.Capturer(endpoint, "host", transport="direct")
    with moetap.Capturer(endpoint, "host", transport="capture_only") as capturer:
        with pytest.raises(moetap.OwnedError):
            moetap.Capturer(endpoint, "host", transport="shm")
        capturer.bind_all()
        run_step(capturer, 1, [0])
    with moetap.Capturer(endpoint, "host", on_full="drop", staging_depth=3) as capturer:
        capturer.bind_all()
        for number in range(1, 12):
            run_step(capturer, number, [0])
        assert capturer.dropped.count > 0


def test_a_full_ring_is_a_timeout_and_the_step_stays_open(endpoint) -> None:
    short = endpoint.replace(timeout=0.1, ring_depth=2)
    with moetap.Capturer(short, "host") as capturer:
        capturer.bind_all()
        number = 0
        with pytest.raises(moetap.TimeoutError):
            while True:
                number += 1
                run_step(capturer, number, [0])
        assert [f.step for f in capturer.take_failures()] == [number]


def test_a_step_is_published_again_with_other_slots(endpoint) -> None:
    short = endpoint.replace(timeout=0.1, ring_depth=1)
    with moetap.Capturer(short, "host", staging_depth=1) as capturer, moetap.Reader(short) as reader:
        capturer.bind_all()
        run_step(capturer, 1, [0])
        capturer.finalize(1)
        number, slots, ids = 2, [1], picks(1, 2)
        with capturer.step(number, 1) as step:
            for layer, layer_ids in zip(SHAPE.moe_layers, ids, strict=True):
                capturer.capture(layer, layer_ids)
            with pytest.raises(moetap.TimeoutError):
                step.publish(slots)
            slots[0] = 5
            reader.poll()
            step.publish(slots)
        reader.wait_for(2)
        rows, states = reader.read([5, 1], (2, 2))
        assert states.tolist() == [RowState.present, RowState.missing]
        assert (rows[0].reshape(3, 2) == ids[:, 0]).all()


def test_layouts(endpoint) -> None:
    with moetap.Capturer(endpoint, "host", dp_rank=1, dp_size=2, layout="concatenated") as capturer:
        capturer.bind_all()
        ids = picks(7)
        with moetap.Reader(endpoint) as reader:
            with capturer.step(1, 3, dp_tokens=[4, 3]) as step:
                for layer, layer_ids in zip(SHAPE.moe_layers, ids, strict=True):
                    capturer.capture(layer, layer_ids)
                step.publish(list(range(3)))
            reader.wait_for(1)
            rows = reader.read_blocks([0], 4, range(3), (1, 1))
            assert (rows.ids == ids.transpose(1, 0, 2)[4:]).all()


def test_after_close(endpoint) -> None:
    capturer = moetap.Capturer(endpoint, "host")
    capturer.close()
    capturer.close()
    assert capturer.closed and "closed" in repr(capturer)
    for call in (lambda: capturer.bind(1), lambda: capturer.begin_step(1, 1), capturer.take_failures,
                 lambda: capturer.publish([0]), capturer.give_up, lambda: capturer.capture(1, picks(1)[0])):
        with pytest.raises(moetap.StateError, match="closed"):
            call()


def test_what_is_not_closed_goes_in_any_order(endpoint) -> None:
    for order in ("cds", "dcs", "scd", "sdc"):
        capturer = moetap.Capturer(endpoint, "host")
        capturer.bind_all()
        device, stream = capturer.device, capturer.device.make_stream()
        array = device.empty((8, 2))
        array.numpy()[:] = picks(8)[0]
        capturer.begin_step(1, 8, stream=stream)
        capturer.capture(1, picks(8)[0])
        capturer.capture(2, array)
        parts = {"c": capturer, "d": device, "s": stream}
        del capturer, device, stream, array
        for part in order:
            del parts[part]


def test_devices() -> None:
    device = moetap.open_device("host")
    assert device.name == "host" and repr(device) == "<Device 'host'>"
    with pytest.raises(moetap.ArgumentError):
        moetap.open_device("tpu")
    if (why := moetap.why_no_cuda()) is not None:
        with pytest.raises(moetap.ArgumentError):
            moetap.open_device("cuda")
        assert why
    array = device.empty((2, 3), "float32")
    assert array.shape == (2, 3) and array.dtype == "float32" and array.device.name == "host"
    view = array.numpy()
    view[:] = 1
    del array
    assert view.sum() == 6
    for shape, dtype in [((-1,), "int32"), ((2**40, 2**40), "int32"), ((2,), "complex64")]:
        with pytest.raises(moetap.ArgumentError):
            device.empty(shape, dtype)
    with pytest.raises(TypeError):
        device.empty("ab")
    with pytest.raises(AttributeError):
        _ = device.empty(1).__cuda_array_interface__


class FakeGpuArray:
    """What a tensor on a GPU looks like."""

    def __init__(self, **changes) -> None:
        self.__cuda_array_interface__ = {"shape": (4, 2), "typestr": "<i4", "data": (256, False),
                                         "version": 3, "strides": None} | changes


class FakeDlpackArray:
    def __init__(self, kind: int, index: int = 0) -> None:
        self.kind, self.index = kind, index

    def __dlpack_device__(self):
        return self.kind, self.index

    def __dlpack__(self, **_):
        raise BufferError("not asked for")


def test_a_gpus_memory_is_refused_on_the_host(capturer) -> None:
    capturer.begin_step(1, 4)
    with pytest.raises(moetap.ArgumentError, match="a GPU's memory"):
        capturer.capture(1, FakeGpuArray())
    with pytest.raises(TypeError, match="__cuda_array_interface__"):
        capturer.capture(1, FakeGpuArray(typestr="<c16"))
    with pytest.raises(TypeError, match="__cuda_array_interface__"):
        capturer.capture(1, FakeGpuArray(strides=(8,)))
    with pytest.raises(moetap.ArgumentError, match="kind 10"):
        capturer.capture(1, FakeDlpackArray(10))
    with pytest.raises(BufferError):
        capturer.capture(1, FakeDlpackArray(1))
    other = moetap.open_device("host")
    with pytest.raises(moetap.ArgumentError, match="another device"):
        capturer.capture(1, other.empty((4, 2)))
    with pytest.raises(moetap.ArgumentError, match="another device"):
        capturer.device.wrap_stream(other.make_stream())
    capturer.give_up()


def test_streams_of_a_gpu_are_refused_on_the_host(capturer, monkeypatch) -> None:
    class WithProtocol:
        def __cuda_stream__(self):
            return (0, 256)

    class Newer:
        __cuda_stream__ = (1, 256)

    for stream in (256, WithProtocol(), types.SimpleNamespace(cuda_stream=256)):
        with pytest.raises(moetap.ArgumentError, match="GPU"):
            capturer.begin_step(1, 4, stream=stream)
    with pytest.raises(moetap.ArgumentError, match="version 1"):
        capturer.begin_step(1, 4, stream=Newer())
    for stream in ("stream", 1.5, True):
        with pytest.raises(TypeError):
            capturer.begin_step(1, 4, stream=stream)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace())
    run_step(capturer, 1, [0, 1])  # a host device does not ask PyTorch


def test_torch_tensors(capturer, endpoint) -> None:
    torch = pytest.importorskip("torch")
    ids = picks(8)
    with capturer.step(1, 8) as step:
        for layer, layer_ids in zip(SHAPE.moe_layers, ids, strict=True):
            capturer.capture(layer, torch.from_numpy(layer_ids))
        step.publish(torch.arange(8))
    assert (rows_of(endpoint, 1).ids == ids.transpose(1, 0, 2)).all()
