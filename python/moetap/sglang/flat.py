"""The `routed_experts` of SGLang's responses: base64 of int32 [rows][hidden layers][top_k]."""

import base64
import binascii
import io

import numpy as np

import moetap

_ID = np.dtype("<i4")


def from_base64(text: str | bytes, shape: moetap.ModelShape, *, tokens: int, start: int = 0) -> moetap.Routes:
    """The rows of a sequence of `tokens` tokens, prompt and output, from position `start` on.

    `start` is the request's routed_experts_start_len. The last token has no row. Dense layers are 0.

    SGLang marks no missing row. One that was never written is all zeros, which for top_k >= 2 no router
    picks: it becomes a missing row, as does one of -1. With top_k 1 it cannot be told from a row of
    expert 0. ArgumentError for another number of bytes, or another model's rows; RangeError for ids
    outside the model.
    """
    if tokens < 1 or not 0 <= start <= tokens:
        raise moetap.ArgumentError(f"start is {start} of a sequence of {tokens} tokens; allowed are 0 to {tokens}, "
                                   "and at least one token")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as why:
        raise moetap.ArgumentError(f"routed_experts is not base64: {why}") from why
    start = min(start, tokens - 1)  # as SGLang does
    size = (tokens - 1 - start, shape.num_hidden_layers, shape.top_k)
    expected = int(np.prod(size)) * _ID.itemsize
    if len(data) != expected:
        raise moetap.ArgumentError(
            f"routed_experts has {len(data)} bytes; positions {start} to {tokens - 1} of a model with "
            f"{size[1]} hidden layers and top-{size[2]} have {expected}: give the request's own start and "
            "number of tokens, and the model that it ran"
        )
    ids = np.frombuffer(data, _ID).reshape(size).copy()
    absent = (ids == -1).all(axis=(1, 2))
    if shape.top_k > 1:
        absent |= (ids == 0).all(axis=(1, 2))
    ids[absent] = 0  # also in dense layers
    ids[np.ix_(absent, list(shape.moe_layers))] = -1
    file = io.BytesIO()
    np.save(file, ids)
    return moetap.Routes.from_npy(file.getvalue(), shape, start=start, dense_id=0)


def to_base64(routes: moetap.Routes) -> str:
    """What SGLang would return for these rows. RowsNotPresent unless all are: it has no mark for others."""
    routes.require_present()
    ids = routes.to_ids("int32", all_hidden=True, dense_id=0)
    return base64.b64encode(ids.astype(_ID).tobytes()).decode("ascii")
