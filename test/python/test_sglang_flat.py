"""The base64 text of SGLang's responses, read and written."""

import base64

import numpy as np
import pytest
from conftest import SHAPE, random_ids, routes_of

import moetap
from moetap import sglang


def text(ids: np.ndarray) -> str:
    """As SGLang's detokenizer writes it."""
    return base64.b64encode(ids.astype(np.int32).tobytes()).decode()


def whole(ids: np.ndarray) -> np.ndarray:
    """[tokens][hidden layers][top_k], 0 in dense layers."""
    rows = np.zeros((len(ids), SHAPE.num_hidden_layers, SHAPE.top_k), np.int32)
    rows[:, list(SHAPE.moe_layers)] = ids
    return rows


IDS = random_ids(np.random.default_rng(1), 5)


@pytest.mark.parametrize("start", [0, 3, 5])
def test_there_and_back(start: int) -> None:
    given = text(whole(IDS[start:]))
    routes = sglang.from_base64(given, SHAPE, tokens=6, start=start)
    assert routes.positions == range(start, 5)
    assert np.array_equal(routes.ids, IDS[start:])
    assert sglang.to_base64(routes) == given
    assert sglang.from_base64(given.encode(), SHAPE, tokens=6, start=start).positions == routes.positions


def test_a_start_past_the_last_row() -> None:
    """SGLang returns none, and so does the sequence that has but one token."""
    assert sglang.from_base64("", SHAPE, tokens=6, start=6).positions == range(5, 5)
    assert sglang.from_base64("", SHAPE, tokens=1).positions == range(0, 0)


@pytest.mark.parametrize("value", [0, -1])
def test_rows_that_nobody_wrote_are_missing(value: int) -> None:
    ids = whole(IDS)
    ids[2] = value
    routes = sglang.from_base64(text(ids), SHAPE, tokens=6)
    assert routes.states.tolist() == [0, 0, int(moetap.RowState.missing), 0, 0]
    with pytest.raises(moetap.RowsNotPresent):
        sglang.to_base64(routes)


def test_one_pick_of_expert_0() -> None:
    """Is a row like others."""
    shape = moetap.ModelShape([0], top_k=1, num_experts=4)
    assert sglang.from_base64(text(np.zeros((2, 1, 1))), shape, tokens=3).all_present


def test_rows_that_are_not_all_present() -> None:
    with pytest.raises(moetap.RowsNotPresent):
        sglang.to_base64(routes_of(IDS, states=[0, 0, 2, 0, 0]))


@pytest.mark.parametrize(("tokens", "start"), [(5, 0), (7, 0), (6, 1)])
def test_another_number_of_rows(tokens: int, start: int) -> None:
    with pytest.raises(moetap.ArgumentError, match="has 240 bytes; positions .* 6 hidden layers and top-2"):
        sglang.from_base64(text(whole(IDS)), SHAPE, tokens=tokens, start=start)


@pytest.mark.parametrize(("tokens", "start"), [(0, 0), (6, -1), (6, 7)])
def test_positions_that_there_are_not(tokens: int, start: int) -> None:
    with pytest.raises(moetap.ArgumentError, match=f"start is {start} of a sequence of {tokens} tokens"):
        sglang.from_base64(text(whole(IDS)), SHAPE, tokens=tokens, start=start)


@pytest.mark.parametrize("given", ["?", "AAA", "AAAA AAAA", "ä"])
def test_text_that_is_not_base64(given: str) -> None:
    with pytest.raises(moetap.ArgumentError, match="routed_experts is not base64"):
        sglang.from_base64(given, SHAPE, tokens=6)


@pytest.mark.parametrize(("layer", "value", "message"), [
    (3, [1, 2], "where the shape has no router"),  # rows of another model
    (2, [5, 5], "picked twice"),
    (2, [0, 0], "picked twice"),  # half of the row was not written
    (2, [3, 16], "expert id 16 of a model with 16"),
    (2, [3, -2], "expert id -2|id -2"),
])
def test_rows_that_no_router_makes(layer: int, value: list[int], message: str) -> None:
    ids = whole(IDS)
    ids[2, layer] = value
    with pytest.raises((moetap.ArgumentError, moetap.RangeError), match=message):
        sglang.from_base64(text(ids), SHAPE, tokens=6)
