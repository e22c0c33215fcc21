import sys

import pytest

from celrec import CelrecError
from celrec.config.plan import Plan
from celrec.inference.graph_files import Scorer, program_of, write_onnx
from tests.inference.small_models import small_log, small_model


def program(embedding):
    return program_of(Scorer(small_model(small_log(), Plan(embedding, "5", rank=6))))


def test_packages_that_are_missing_are_named_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(CelrecError, match=r"needs onnx and onnxscript.*pip install 'celrec\[exp"):
        write_onnx(tmp_path / "model.onnx", program("full"), "{}")


def test_a_table_that_onnx_has_no_operators_for_is_refused_in_one_line(tmp_path):
    with pytest.raises(CelrecError, match=r"cannot hold this model \(.*searchsorted") as told:
        write_onnx(tmp_path / "model.onnx", program("cafe"), "{}")
    assert "\n" not in str(told.value)
    assert "take 'pt2' or 'safetensors'" in str(told.value)
