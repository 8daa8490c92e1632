"""ModelShape."""

import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

import moetap

CONFIG = {"model_type": "qwen3_moe", "num_hidden_layers": 4, "num_experts": 128, "num_experts_per_tok": 8,
          "decoder_sparse_step": 1, "mlp_only_layers": []}


def test_is_described() -> None:
    shape = moetap.ModelShape([1, 2, 4], top_k=2, num_experts=16, num_hidden_layers=6)
    assert shape.moe_layers == (1, 2, 4)
    assert (shape.num_layers, shape.num_hidden_layers, shape.top_k, shape.num_experts) == (3, 6, 2, 16)
    assert (shape.id_type, shape.weight_type, shape.repeats_experts) == ("uint8", None, False)
    assert (shape.row_bytes, shape.ids_bytes, shape.weights_offset) == (6, 6, 6)
    assert shape.layer_index(4) == 2
    assert str(shape) == "3 layers x top-2 of 16 experts"
    assert repr(shape) == "ModelShape(3 layers x top-2 of 16 experts)"


def test_narrow_type_follows_from_the_experts() -> None:
    assert moetap.ModelShape.uniform(1, 2, 256).id_type == "uint8"
    assert moetap.ModelShape.uniform(1, 2, 257).id_type == "uint16"


@pytest.mark.parametrize("config", [
    json.dumps(CONFIG), CONFIG, SimpleNamespace(**CONFIG),
    SimpleNamespace(to_dict=lambda: CONFIG), {"text_config": SimpleNamespace(**CONFIG)},
])
def test_from_config(config: object) -> None:
    assert moetap.ModelShape.from_config(config) == moetap.ModelShape.uniform(4, 8, 128)


def test_configurations_keep_what_json_does_not_have() -> None:
    config = SimpleNamespace(**CONFIG, torch_dtype=np.dtype("float16"), eos=(1, 2), _name="x")
    assert moetap.ModelShape.from_config(config).num_layers == 4


def test_a_dense_model_is_refused() -> None:
    with pytest.raises(moetap.ArgumentError, match="dense model"):
        moetap.ModelShape.from_config({"num_hidden_layers": 4})


def test_from_config_file(tmp_path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    shape = moetap.ModelShape.from_config_file(path)
    for name in (str(path), bytes(path)):
        assert moetap.ModelShape.from_config_file(name) == shape
    for name, error in [("a\0b", ValueError), (b"\xff\xfe", moetap.SystemError), (3, TypeError)]:
        with pytest.raises(error):
            moetap.ModelShape.from_config_file(name)
    with pytest.raises(UnicodeError):
        moetap.ModelShape.from_config("\ud800")
    with pytest.raises(OSError) as error:
        moetap.ModelShape.from_config_file(tmp_path / "none.json")
    assert isinstance(error.value, moetap.SystemError) and error.value.errno == 2


def test_known_models() -> None:
    assert "deepseek-v3" in moetap.ModelShape.known_names()
    assert moetap.ModelShape.known("deepseek-v3").num_experts == 256
    with pytest.raises(moetap.ArgumentError, match="deepseek-v3"):
        moetap.ModelShape.known("gpt-2")


def test_changed_shapes() -> None:
    shape = moetap.ModelShape.uniform(4, 2, 16)
    weighted = shape.with_weights("float32")
    assert (weighted.weight_type, weighted.weights_offset, weighted.row_bytes) == ("float32", 8, 40)
    assert weighted.with_weights(None) == shape
    assert shape.with_repeated_experts().repeats_experts
    assert shape.with_layers([1, 3]).moe_layers == (1, 3)
    assert "weights" in shape.difference(weighted)
    assert shape.difference(shape) == ""


def test_equality_hash_and_pickle() -> None:
    shape = moetap.ModelShape([0, 3], 2, 300, 9).with_weights("bfloat16").with_repeated_experts()
    copy = pickle.loads(pickle.dumps(shape))
    assert copy == shape and hash(copy) == hash(shape) and copy.weight_type == "bfloat16"
    assert copy != shape.with_weights(None) and copy != "shape"


@pytest.mark.parametrize(("make", "error"), [
    (lambda: moetap.ModelShape([], 2, 16), moetap.ArgumentError),
    (lambda: moetap.ModelShape([2, 1], 2, 16), moetap.ArgumentError),
    (lambda: moetap.ModelShape([-1], 2, 16), moetap.RangeError),
    (lambda: moetap.ModelShape([2**40], 2, 16), moetap.RangeError),
    (lambda: moetap.ModelShape([0], 17, 16), moetap.ArgumentError),
    (lambda: moetap.ModelShape([0], 2, 65537), moetap.ArgumentError),
    (lambda: moetap.ModelShape([0.5], 2, 16), TypeError),
    (lambda: moetap.ModelShape(range(-2**31, 13, 2), 2, 16), moetap.ArgumentError),
    (lambda: moetap.ModelShape("01", 2, 16), TypeError),
    (lambda: moetap.ModelShape.uniform(1, 2, 16).with_weights("float64"), moetap.ArgumentError),
    (lambda: moetap.ModelShape.uniform(1, 2, 16).layer_index(5), moetap.RangeError),
])
def test_bad_shapes(make, error) -> None:
    with pytest.raises(error):
        make()
