import json
from dataclasses import replace

import numpy as np
import onnxruntime
import polars as pl
import pytest
import torch

from celrec import Planted, read
from celrec.cli.main import main
from celrec.config.presets import PRESETS
from celrec.inference.graph_files import Scorer, read_safetensors
from celrec.runs.run_folder import load_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a log, a run with rows of one's own, and an online one."""
    folder = tmp_path_factory.mktemp("trained")
    planted = Planted(rows=1500, users=40, items=50, dim=3, item_clusters=4)
    planted.interactions().to_frame().write_csv(folder / "log.csv")
    words = [str(folder / "log.csv"), "--rank", "4", "--compression", "4"]
    with pytest.MonkeyPatch.context() as patch:
        for presets in PRESETS.values():
            for name, how in presets.items():
                schedule, personal = replace(how.schedule, steps=6), replace(how.personal, steps=4)
                patch.setitem(presets, name, replace(how, schedule=schedule, personal=personal))
        more = ["--model", "mf", "--personalise", "40", "--out", str(folder / "mf")]
        assert main(["train", *words, *more]) == 0
    assert main(["online", *words, "--run", str(folder / "online")]) == 0
    return folder


def predicted(run, events):
    """What a run says of pairs of original ids."""
    rows = pl.DataFrame(events, schema=["user", "item"], orient="row").with_columns(target=0.0)
    return run.model.predict(read(rows, like=run.known)).numpy()


def scores(folder, events):
    """What an export says of the same, by nothing but what is in its folder."""
    about = json.loads((folder / "export.json").read_text())
    asked = {}
    for place, side in enumerate(("user", "item")):
        table = pl.read_parquet(folder / about["inputs"][side]["ids"])
        known = dict(zip(table["id"].to_list(), table["number"].to_list(), strict=True))
        numbers = [known.get(event[place], about["unseen"]) for event in events]
        asked[side] = np.array(numbers)
    file = folder / about["file"]
    if about["format"] == "onnx":
        return onnxruntime.InferenceSession(file).run(None, asked)[0]
    tensors = {name: torch.from_numpy(ids) for name, ids in asked.items()}
    if about["format"] == "pt2":
        return torch.export.load(file).module()(**tensors).detach().numpy()
    return Scorer(read_safetensors(file))(**tensors).detach().numpy()


@pytest.mark.parametrize(
    ("name", "kind"), [("mf", "onnx"), ("mf", "pt2"), ("online", "onnx"), ("online", "safetensors")]
)
def test_what_is_exported_scores_as_the_run(capsys, trained, tmp_path, name, kind):
    words = ["export", str(trained / name), "--format", kind, "--out", str(tmp_path / "out")]
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["run"], told["out"]) == (str(trained / name), str(tmp_path / "out"))
    assert told["bytes"] == (tmp_path / "out" / told["file"]).stat().st_size
    to_id = str if name == "online" else int  # ids in a stream of text are words
    pairs = [(n % 40, n * 7 % 50) for n in range(60)]
    events = [(to_id(user), to_id(item)) for user, item in pairs]
    events += [(to_id(999), to_id(3)), (to_id(3), to_id(999)), (to_id(999), to_id(999))]
    expected = predicted(load_run(trained / name), events)
    np.testing.assert_allclose(scores(tmp_path / "out", events), expected, rtol=0, atol=1e-5)
    assert expected.std() > 0.01


def test_people_are_told_where_it_is(capsys, trained):
    capsys.readouterr()
    assert main(["export", str(trained / "mf"), "--format", "safetensors"]) == 0
    folder = trained / "mf-safetensors"
    size = (folder / "model.safetensors").stat().st_size
    assert capsys.readouterr().out.splitlines() == [
        f"{folder / 'model.safetensors'}: {size:,} bytes, from user, item to prediction",
        f"Numbers of users and items, inputs and outputs: {folder / 'export.json'}",
    ]


def test_mistakes_are_one_line(capsys, trained, tmp_path):
    run = str(trained / "mf")
    for words, told in (
        ([run], "Missing option '--format'"),
        ([run, "--format", "pickle"], "format must be one of onnx, pt2, safetensors"),
        ([str(tmp_path), "--format", "pt2"], "not a run folder"),
        (
            [run, "--format", "safetensors", "--out", run],
            "exists and is not an export; choose another",
        ),
    ):
        capsys.readouterr()
        assert main(["export", *words]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
    assert load_run(run).plan.model == "mf"
