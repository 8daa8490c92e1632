"""What a Capturer reads: arrays of all kinds, devices and streams."""

import ctypes
import sys
import types

import numpy as np
import pytest
from conftest import SHAPE, picks, rows_of, run_step

import moetap


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
    (lambda c: c.publish(np.arange(4, dtype=np.int32)), None),
    (lambda c: c.publish(np.arange(4, dtype=np.uint64)), None),
    (lambda c: c.publish(range(4)), None),
    (lambda c: c.publish((ctypes.c_int64 * 4)(0, 1, 2, 3)), None),
    (lambda c: c.capture(1, (ctypes.c_int32 * 2 * 4)(*[(0, 1)] * 4)), None),
    (lambda c: c.publish(np.arange(8)[::2]), moetap.ArgumentError),
    (lambda c: c.publish(np.zeros((2, 2), np.int64)), moetap.ArgumentError),
    (lambda c: c.publish(7), TypeError),
    (lambda c: c.publish([0.5] * 4), TypeError),
    (lambda c: c.publish(["0", "1", "2", "3"]), TypeError),
    (lambda c: c.publish([True, False, 2, 3]), TypeError),
    (lambda c: c.publish([b"0", 1, 2, 3]), TypeError),
    (lambda c: c.publish([None, 1, 2, 3]), TypeError),
    (lambda c: c.publish([2**70, 1, 2, 3]), moetap.RangeError),
    (lambda c: c.publish(np.full(4, 2**64 - 1, np.uint64)), moetap.RangeError),
    (lambda c: c.publish(np.zeros(4, ">i8")), TypeError),
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


@pytest.mark.parametrize("name", ["host", "inline"])
def test_devices(name: str) -> None:
    device = moetap.open_device(name)
    assert device.name == name and repr(device) == f"<Device '{name}'>"
    with pytest.raises(moetap.ArgumentError):
        moetap.open_device("tpu")
    if (why := moetap.why_no_cuda()) is not None:
        with pytest.raises(moetap.ArgumentError):
            moetap.open_device("cuda")
        assert why
    array = device.empty((2, 3), "float32")
    assert array.shape == (2, 3) and array.dtype == "float32" and array.device.name == name
    view = array.numpy()
    view[:] = 1
    del array
    assert view.sum() == 6
    assert device.empty((1,) * 32).numpy().shape == (1,) * 32
    for shape, dtype in [((-1,), "int32"), ((2**40, 2**40), "int32"), ((2,), "complex64"), ((1,) * 33, "int32")]:
        with pytest.raises(moetap.ArgumentError):
            device.empty(shape, dtype)
    with pytest.raises(TypeError):
        device.empty("ab")
    with pytest.raises(AttributeError):
        _ = device.empty(1).__cuda_array_interface__


def test_device_arrays_have_dlpack() -> None:
    array = moetap.open_device("host").empty((2, 3), "uint16")
    assert array.__dlpack_device__() == (1, 0)
    shared = np.from_dlpack(array)
    array.numpy()[:] = 7
    del array
    assert shared.shape == (2, 3) and shared.dtype == np.uint16 and (shared == 7).all()
    with pytest.raises(BufferError):
        moetap.open_device("host").empty(1).__dlpack__(dl_device=(2, 0))


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
    for changes in ({"data": ("256", False)}, {"data": 256}, {"shape": (4, None)}, {"typestr": 4}, {"shape": 8},
                    {"strides": "ab"}, {"data": ()}, {"data": (-1, False)}, {"stream": "0"}):
        with pytest.raises(TypeError):
            capturer.capture(1, FakeGpuArray(**changes))
    lacking = FakeGpuArray()
    del lacking.__cuda_array_interface__["data"]
    with pytest.raises(TypeError, match="not as it must be"):
        capturer.capture(1, lacking)
    for device in ("cpu", (1,), (1.5, 0), None):
        wrong = FakeDlpackArray(1)
        wrong.__dlpack_device__ = lambda device=device: device
        with pytest.raises(TypeError):
            capturer.capture(1, wrong)
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
        with pytest.raises(moetap.ArgumentError, match="GPU|CUDA"):
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
    wide = torch.zeros((8, 5), dtype=torch.int64)
    wide[:, :2] = torch.from_numpy(ids[0])
    on_device = capturer.device.empty((8, 2))
    torch.from_dlpack(on_device).copy_(torch.from_numpy(ids[1]))
    with torch.inference_mode(), capturer.step(1, 8) as step:
        capturer.capture(1, wide[:, :2])
        capturer.capture(2, on_device)
        capturer.capture(4, torch.from_numpy(ids[2]) + 0)
        with pytest.raises(moetap.ArgumentError, match="copy it first"):
            capturer.capture(4, torch.from_numpy(ids[2]).t().contiguous().t())
        step.publish(torch.arange(8))
    assert (rows_of(endpoint, 1).ids == ids.transpose(1, 0, 2)).all()


def test_torch_weights(endpoint) -> None:
    torch = pytest.importorskip("torch")
    weighted = endpoint.replace(shape=SHAPE.with_weights("bfloat16"))
    with moetap.Capturer(weighted, "host", transport="shm") as capturer:
        capturer.bind_all()
        ids, weights = picks(8), torch.rand(8, 2).to(torch.bfloat16)
        with capturer.step(1, 8) as step:
            for layer, layer_ids in zip(SHAPE.moe_layers, ids, strict=True):
                capturer.capture(layer, torch.from_numpy(layer_ids), weights)
            step.publish(torch.arange(8))
        rows = rows_of(weighted, 1)
        assert (torch.from_numpy(rows.weights.copy()).view(torch.bfloat16) == weights[:, None]).all()
