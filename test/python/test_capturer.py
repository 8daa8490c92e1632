"""Capturer: steps, graphs and options."""

import numpy as np
import pytest
from conftest import SHAPE, picks, rows_of, run_step

import moetap
from moetap import RowState


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
        with pytest.raises(moetap.StateError, match="1 of its views or their arrays are out"):
            capturer.close()
        del output


def test_a_guard_ends_with_its_step(capturer, endpoint) -> None:
    """Also if the Capturer's own calls end it, and another step begins."""
    first = capturer.step(1, 4)
    first.__enter__()
    capturer.give_up()
    assert not first.open
    with capturer.step(2, 4) as second:
        with pytest.raises(moetap.StateError, match="step 1, which is closed"):
            first.publish([0, 1, 2, 3])
        first.__exit__(None, None, None)
        assert second.open


def test_a_graph_is_not_launched_once_its_capturer_is_closed(endpoint) -> None:
    with moetap.Capturer(endpoint, "host") as capturer:
        capturer.bind_all()
        stream = capturer.device.make_stream()
        ids = capturer.device.empty((4, 2), "int32")
        ids.numpy()[:] = [0, 1]
        stream.begin_capture()
        with capturer.graph(4, stream=stream):
            for layer in SHAPE.moe_layers:
                capturer.capture(layer, ids)
        graph = stream.end_capture()
        stream.launch(graph)
        stream.synchronize()
    with pytest.raises(moetap.StateError, match="was closed"):
        stream.launch(graph)


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
