"""Replay in trainers: every array against plain loops."""

import numpy as np
import pytest
from conftest import SHAPE, random_ids, routes_of

import moetap
from moetap import RowState, replay

STATES = [RowState.missing, RowState.stale, RowState.clobbered, RowState.unverified]


class Batch:
    """Random sequences, of which some rows are not there. `rows[i][position]` are those that are."""

    def __init__(self, seed: int, shape: moetap.ModelShape = SHAPE, whole: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.shape = shape
        self.tokens = [int(n) for n in self.random.integers(0 if not whole else 1, 14, 5)]
        self.routes: list[moetap.Routes | None] = []
        self.rows: list[dict[int, np.ndarray]] = []
        for tokens in self.tokens:
            start = 0 if whole else int(self.random.integers(0, tokens + 1))
            end = max(tokens - 1, 0) if whole else int(self.random.integers(start, tokens + 1))
            ids = random_ids(self.random, end - start, shape)
            states = self.random.choice([0, 0, 0, *STATES], end - start) * (not whole)
            absent = not whole and self.random.random() < 0.2
            self.routes.append(None if absent else routes_of(ids, start, states, shape))
            self.rows.append({} if absent else {start + i: ids[i] for i in np.flatnonzero(states == 0)})

    def check(self, tokens, ids, mask, layer_indices, masked) -> None:
        """`tokens` are (sequence, position) or None; `ids` is [token][layer_indices][top_k]."""
        assert len(tokens) == len(ids) == len(mask)
        for token, got, here in zip(tokens, ids, mask, strict=True):
            row = None if token is None else self.rows[token[0]].get(token[1])
            assert here == (row is not None)
            if row is not None:
                assert (got == row[layer_indices]).all()
            elif masked:
                assert (got == -1).all()
            else:
                assert ((got >= 0) & (got < self.shape.num_experts)).all()
                assert all(len(set(experts)) == self.shape.top_k for experts in got.tolist())


def share(tokens, ranks) -> list:
    """The tp_rank-th of tp_size equal pieces."""
    if not ranks.sequence_parallel:
        return tokens
    size = len(tokens) // ranks.tp_size
    return [tokens[i] for i in range(len(tokens)) if i // size == ranks.tp_rank]


def zigzag(tokens, ranks) -> list:
    """Two of 2 * cp_size equal pieces, counted from both ends."""
    chunk = len(tokens) // (2 * ranks.cp_size)
    pieces = [tokens[i * chunk:(i + 1) * chunk] for i in range(2 * ranks.cp_size)]
    return tokens if ranks.cp_size == 1 else pieces[ranks.cp_rank] + pieces[-1 - ranks.cp_rank]


def all_ranks():
    for tp_size, cp_size in ((1, 1), (2, 2), (3, 4)):
        for tp_rank in range(tp_size):
            for cp_rank in range(cp_size):
                for sequence_parallel in (False, True):
                    yield replay.Ranks(tp_size, tp_rank, sequence_parallel, cp_size, cp_rank)


@pytest.mark.parametrize("absent", ["distinct", "masked"])
@pytest.mark.parametrize("seed", range(4))
def test_packed(seed, absent) -> None:
    batch = Batch(seed)
    offsets = np.cumsum([0, *batch.tokens])
    for ranks in all_ranks():
        multiple = ranks.tp_size * 2 * ranks.cp_size
        room = [-(-n // multiple) * multiple + multiple * int(batch.random.integers(0, 2)) for n in batch.tokens]
        tokens = [token for i, n in enumerate(room)
                  for token in zigzag([(i, p) if p < batch.tokens[i] else None for p in range(n)], ranks)]
        layout = replay.Packed(offsets, np.cumsum([0, *room], dtype=np.int32))
        targets = replay.per_layer(batch.routes, SHAPE, layout, ranks, absent=absent)
        assert targets.layers == SHAPE.moe_layers and {ids.dtype for ids in targets.ids} == {np.dtype(np.int64)}
        batch.check(share(tokens, ranks), np.stack(targets.ids, 1), targets.mask, [0, 1, 2], absent == "masked")
    whole, mask = replay.stacked(batch.routes, SHAPE, layout, absent=absent)
    assert whole.shape == (sum(room), 3, 2) and whole.dtype == np.int16
    in_order = [(i, p) if p < batch.tokens[i] else None for i, n in enumerate(room) for p in range(n)]
    batch.check(in_order, whole, mask, [0, 1, 2], absent == "masked")


@pytest.mark.parametrize("absent", ["distinct", "masked"])
@pytest.mark.parametrize("seed", range(4))
def test_padded(seed, absent) -> None:
    """Megatron's order: all sequences' first tokens, then their second ones. verl's and slime's: by sequence."""
    batch = Batch(seed)
    length = 48
    free = length - np.array(batch.tokens)
    for starts in (0, free, batch.random.integers(0, free + 1)):
        layout = replay.Padded(batch.tokens, length, starts)
        firsts = np.broadcast_to(starts, len(batch.tokens))
        where = [[(i, s - firsts[i]) if 0 <= s - firsts[i] < n else None for i, n in enumerate(batch.tokens)]
                 for s in range(length)]
        for ranks in all_ranks():
            expected = [token for column in share(zigzag(where, ranks), ranks) for token in column]
            targets = replay.per_layer(batch.routes, SHAPE, layout, ranks, absent=absent)
            batch.check(expected, np.stack(targets.ids, 1), targets.mask, [0, 1, 2], absent == "masked")
        whole, mask = replay.stacked(batch.routes, SHAPE, layout, dtype="int32", absent=absent)
        assert whole.shape == (5, 48, 3, 2) and whole.dtype == np.int32 and mask.shape == (5, 48)
        by_sequence = [where[s][i] for i in range(5) for s in range(length)]
        batch.check(by_sequence, whole.reshape(-1, 3, 2), mask.ravel(), [0, 1, 2], absent == "masked")


def test_pipeline_stages_get_their_layers() -> None:
    batch = Batch(3, whole=True)
    layout = replay.Packed(np.cumsum([0, *batch.tokens]))
    whole = replay.per_layer(batch.routes, SHAPE, layout)
    for layers in ([1], [2, 4], [4, 1], []):
        stage = replay.per_layer(batch.routes, SHAPE, layout, replay.Ranks(layers=layers))
        assert stage.layers == tuple(layers) and (stage.mask == whole.mask).all()
        for layer, ids in zip(layers, stage.ids, strict=True):
            assert (ids == whole.ids[SHAPE.layer_index(layer)]).all()


@pytest.mark.parametrize("shape", [
    moetap.ModelShape([0, 3], 1, 3), moetap.ModelShape([0], 8, 8), moetap.ModelShape([1, 2], 4, 256),
    moetap.ModelShape([1, 2], 4, 40000), SHAPE.with_weights(None)], ids=str)
def test_other_shapes(shape) -> None:
    batch = Batch(1, shape)
    layout = replay.Packed(np.cumsum([0, *batch.tokens]))
    tokens = [(i, p) for i, n in enumerate(batch.tokens) for p in range(n)]
    for absent in ("distinct", "masked"):
        targets = replay.per_layer(batch.routes, shape, layout, absent=absent)
        layers = list(range(shape.num_layers))
        batch.check(tokens, np.stack(targets.ids, 1), targets.mask, layers, absent == "masked")


def test_the_last_token_is_masked_as_padding_is() -> None:
    """A sequence of S tokens has S - 1 rows. Its last token has one only if the routes have it."""
    ids = random_ids(np.random.default_rng(1), 4)
    for rows, last in ((3, False), (4, True)):
        targets = replay.per_layer([routes_of(ids[:rows])], SHAPE, replay.Packed([0, 4], [0, 6]))
        assert targets.mask.tolist() == [True] * 3 + [last, False, False]
        assert (targets.ids[2][:rows] == ids[:rows, 2]).all()
        masked = replay.per_layer([routes_of(ids[:rows])], SHAPE, replay.Packed([0, 4], [0, 6]), absent="masked")
        assert (masked.ids[2][rows:] == -1).all() and (masked.ids[2][:rows] == ids[:rows, 2]).all()
    assert not replay.per_layer([None], SHAPE, replay.Packed([0, 1])).mask.any()


def test_padding_gives_each_expert_the_same_work() -> None:
    targets = replay.per_layer([None, None], SHAPE, replay.Packed([0, 0, 1], [0, 40, 64]))
    for ids in targets.ids:
        assert (np.bincount(ids.ravel(), minlength=16) == 8).all()


def test_all_hidden_layers() -> None:
    batch = Batch(2)
    layout = replay.Padded(batch.tokens, 16)
    moe, moe_mask = replay.stacked(batch.routes, SHAPE, layout, absent="distinct")
    for dense in (-1, 0):
        hidden, mask = replay.stacked(batch.routes, SHAPE, layout, absent="distinct", all_hidden=True, dense_id=dense)
        assert hidden.shape == (5, 16, 6, 2) and (mask == moe_mask).all()
        assert (hidden[:, :, [1, 2, 4]] == moe).all() and (hidden[:, :, [0, 3, 5]] == dense).all()


def test_verls_form() -> None:
    """Prompts end where responses begin. verl places a sequence's rows from its first token on."""
    batch = Batch(5, whole=True)
    prompts = [n // 2 for n in batch.tokens]
    layout = replay.Padded(batch.tokens, 8 + 10, [8 - prompt for prompt in prompts])
    ids, mask = replay.stacked(batch.routes, SHAPE, layout, dtype="int16", all_hidden=True)
    for i, routes in enumerate(batch.routes):
        begin = 8 - prompts[i]
        rows = routes.to_ids("int16", all_hidden=True)
        assert (ids[i, begin:begin + len(rows)] == rows).all()
        assert mask[i].tolist() == [begin <= column < begin + len(rows) for column in range(18)]


def test_slimes_form() -> None:
    """A list of [tokens - 1][hidden layers][top_k]."""
    batch = Batch(6, whole=True)
    offsets = np.cumsum([0, *batch.tokens])
    ids, _ = replay.stacked(batch.routes, SHAPE, replay.Packed(offsets), dtype="int32", all_hidden=True)
    for routes, rows in zip(batch.routes, np.split(ids, offsets[1:-1]), strict=True):
        assert (rows[:-1] == routes.to_ids("int32", all_hidden=True)).all()


def test_nothing_is_written_into_the_routes() -> None:
    batch = Batch(7)
    before = [routes and routes.to_ids().tolist() for routes in batch.routes]
    targets = replay.per_layer(batch.routes, SHAPE, replay.Packed(np.cumsum([0, *batch.tokens])), absent="distinct")
    for ids in targets.ids:
        ids[:] = 9
    assert [routes and routes.to_ids().tolist() for routes in batch.routes] == before
