"""Endpoint, Topology and the anchor group."""

import pickle

import numpy as np
import pytest

import moetap

SHAPE = moetap.ModelShape.uniform(4, 2, 16)


def endpoint(**fields) -> moetap.Endpoint:
    return moetap.Endpoint(**({"instance": "e", "shape": SHAPE, "num_slots": 64, "max_tokens": 8} | fields))


def test_fields() -> None:
    made = endpoint(dp_rank=1, stage=2, part=3, ring_depth=5, steps_in_flight=2,
                    timeout=1.5, huge_pages=False)
    assert (made.instance, made.shape, made.num_slots, made.max_tokens) == ("e", SHAPE, 64, 8)
    assert (made.dp_rank, made.stage, made.part, made.ring_depth) == (1, 2, 3, 5)
    assert (made.steps_in_flight, made.shm_layout, made.timeout, made.huge_pages) == (2, "native", 1.5, False)


def test_replace_equality_and_pickle() -> None:
    made = endpoint()
    other = made.replace(dp_rank=1)
    assert other.dp_rank == 1 and made.dp_rank == 0 and other != made
    assert other.replace(dp_rank=0) == made and hash(other.replace(dp_rank=0)) == hash(made)
    assert pickle.loads(pickle.dumps(other)) == other
    assert "num_slots=64" in repr(made)
    with pytest.raises(TypeError):
        made.replace(slots=3)


@pytest.mark.parametrize("fields", [
    {"instance": "a/b"}, {"instance": ""}, {"num_slots": 0}, {"max_tokens": 0}, {"dp_rank": -1},
    {"ring_depth": 0}, {"timeout": -1}, {"timeout": float("nan")}, {"shm_layout": "vllm"},
])
def test_bad_endpoints(fields) -> None:
    with pytest.raises(moetap.ArgumentError):
        endpoint(**fields)


def test_topology() -> None:
    topology = moetap.Topology(tp_size=2, tp_rank=1, pp_size=2, pp_rank=1, stage_layers=[[0, 1], [2, 3]])
    topology.validate(SHAPE)
    assert topology.captures and not topology.publishes and topology.moe_stages() == [0, 1]
    assert topology.stage_shape(SHAPE, 1).moe_layers == (2, 3)
    assert pickle.loads(pickle.dumps(topology)) == topology
    assert topology.replace(tp_rank=0).publishes
    assert (topology.layout, topology.parts) == ("local", "none")
    with pytest.raises(moetap.RangeError):
        topology.stage_shape(SHAPE, 2)
    with pytest.raises(moetap.ArgumentError, match="context"):
        moetap.Topology(cp_size=2).validate(SHAPE)
    with pytest.raises(moetap.ArgumentError, match="'local', 'concatenated', 'padded'"):
        moetap.Topology(layout="flat")
    with pytest.raises(moetap.ArgumentError, match="1 entries for 2"):
        moetap.Topology(pp_size=2, stage_layers=[[1]]).moe_stages()
    with pytest.raises(moetap.ArgumentError, match="pipeline rank 4 of 1"):
        _ = moetap.Topology(pp_rank=4, stage_layers=[[1]]).captures


def test_endpoints_of() -> None:
    topology = moetap.Topology(pp_size=2, stage_layers=[[0, 1], [2, 3]])
    [[first], [second]] = moetap.endpoints_of(endpoint(), topology)
    assert (first.stage, second.stage) == (0, 1) and second.shape.moe_layers == (2, 3)
    assert moetap.endpoint_of(endpoint(), topology.replace(pp_rank=1)) == second


def test_anchor_group() -> None:
    group = moetap.KvCacheGroup
    assert moetap.anchor_group([group("mamba"), group("sliding_window"), group("mla", 64)]) == 2
    assert moetap.anchor_group([group("uniform", members=[group(), group()])]) == 0
    assert (group().kind, group().block_size, group().members) == ("full_attention", 16, [])
    with pytest.raises(moetap.ArgumentError, match="mamba"):
        moetap.anchor_group([group("mamba")])


def test_slots_of() -> None:
    slots = moetap.slots_of([3, 7], 4, range(2, 6))
    assert slots.dtype == np.int64 and slots.tolist() == [14, 15, 28, 29]
    assert moetap.slots_of(np.array([3, 7], np.int32), 4, (2, 6)).tolist() == slots.tolist()
    with pytest.raises(moetap.RangeError):
        moetap.slots_of([3], 4, range(2, 6))
    with pytest.raises(TypeError):
        moetap.slots_of([3], 4, range(0, 4, 2))
