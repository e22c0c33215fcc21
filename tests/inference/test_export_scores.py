"""ONNX Runtime and programs of torch.export score as the models do."""

import zipfile
from dataclasses import replace
from typing import NamedTuple

import onnx
import onnxruntime
import pytest
import torch

from celrec.config.plan import Plan
from celrec.inference.graph_files import (
    ONNX_ABOUT,
    OUTPUT,
    PROGRAM_ABOUT,
    Scorer,
    program_of,
    write_onnx,
    write_program,
)
from tests.inference.small_models import BATCHES, questions, small_log, small_model


class Case(NamedTuple):
    plan: Plan
    personalised: bool = False
    packed: bool = False
    levels: int = 1


# Each model once, each kind of table once, each loss once, features and further columns with one
# network: a graph takes seconds to make.
CASES = {
    "nmf, cel": Case(Plan("cel", "5", rank=6, side="both")),
    "nmf, cel-lite with rows of one's own": Case(Plan("cel-lite", "5", rank=6, personalise="3")),
    "mf, personalised cel": Case(Plan("cel", "5", rank=6, model="mf"), personalised=True),
    "mf, cel in levels": Case(Plan("cel", "5", rank=6, model="mf", side="both"), levels=3),
    "deepfm with further columns, cel in levels": Case(
        Plan("cel", "5", rank=6, model="deepfm"), levels=2
    ),
    "din, cel in levels": Case(Plan("cel", "5", rank=6, model="din", features=False), levels=2),
    "neumf, full": Case(
        Plan("full", "5", rank=12, model="neumf", features=False, loss="cross-entropy")
    ),
    "widedeep, modulo": Case(Plan("modulo", "5", rank=6, model="widedeep", features=False)),
    "deepfm, int8, packed": Case(Plan("cel-int8", "5", rank=6, model="deepfm"), packed=True),
    "mmoe, prehash4": Case(
        Plan("prehash4", "6", rank=6, model="mmoe", features=False, positive=3.0)
    ),
    "din, personalised cel": Case(
        Plan("cel", "5", rank=6, model="din", features=False, loss="ranking", positive=3.0),
        personalised=True,
    ),
    "dien, cel": Case(Plan("cel", "5", rank=6, model="dien", features=False)),
}


@pytest.fixture(scope="module")
def log():
    return small_log()


LONG = ("din, cel in levels", "neumf, full", "widedeep, modulo", "mmoe, prehash4", "dien, cel")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in CASES],
)
def test_exported_graphs_score_as_the_model_does(log, name, tmp_path):
    case = CASES[name]
    log = log if case.plan.features else replace(log, columns={})
    how = {"personalised": case.personalised, "packed": case.packed, "levels": case.levels}
    scorer = Scorer(small_model(log, case.plan, **how))
    program = program_of(scorer)
    write_program(tmp_path / "model.pt2", program, '{"who": "torch"}')
    write_onnx(tmp_path / "model.onnx", program, '{"who": "onnx"}')

    extra = {PROGRAM_ABOUT: ""}
    loaded = torch.export.load(tmp_path / "model.pt2", extra_files=extra).module()
    session = onnxruntime.InferenceSession(
        tmp_path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    assert extra[PROGRAM_ABOUT] == '{"who": "torch"}'
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata[ONNX_ABOUT] == '{"who": "onnx"}'
    for batch in BATCHES:
        asked = questions(scorer, batch)
        with torch.no_grad():
            expected = scorer(**asked)
            torch.testing.assert_close(loaded(**asked), expected, rtol=0, atol=1e-5)
        (scores,) = session.run([OUTPUT], {name: ids.numpy() for name, ids in asked.items()})
        torch.testing.assert_close(torch.from_numpy(scores), expected, rtol=0, atol=1e-5)
        assert batch == 1 or expected.std() > 1e-3  # or else it would be no test

    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        pickles = [one for one in archive.infolist() if one.filename.endswith((".pt", ".pkl"))]
    assert sum(one.file_size for one in pickles) == 0
    for file in tmp_path.iterdir():  # .pt2 files are archives that are not compressed
        assert b"scorer.py" not in file.read_bytes()  # nothing of the machine it was made on
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert [one.name for one in graph.input] == list(scorer.example(1))
    assert {one.type.tensor_type.shape.dim[0].dim_param for one in graph.input} == {"batch"}
    assert {node.domain for node in graph.node} == {""}  # standard operators alone
