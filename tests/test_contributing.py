"""The examples in CONTRIBUTING.md are run, as somebody who adds a method or a model would."""

import doctest
import re
from pathlib import Path

import pytest

import celrec
from celrec.cli.main import main
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.registry import METHODS, Method
from celrec.models.interaction import LOSSES
from celrec.models.registry import MODELS
from celrec.models.wide_deep import WideDeep

GUIDE = Path(__file__).parents[1] / "CONTRIBUTING.md"


def examples(part):
    """The examples of one chapter, and how many lines they have."""
    chapter = GUIDE.read_text().partition(f"## {part}\n")[2].partition("\n## ")[0]
    block = "".join(re.findall(r"^```python\n(.*?)^```$", chapter, re.M | re.S))
    found = doctest.DocTestParser().get_doctest(block, {}, "CONTRIBUTING", str(GUIDE), 0)
    return found, len(block.splitlines())


def test_a_new_model_takes_less_than_forty_lines_and_learns(monkeypatch):
    monkeypatch.setitem(MODELS, "bilinear", None)  # so that it is put back afterwards
    found, lines = examples("How to add a model")
    assert lines < 40
    results = doctest.DocTestRunner().run(found)
    assert results.attempted >= 10
    assert results.failed == 0


@pytest.mark.parametrize(
    ("embedding", "preset"), [("cel", "default"), ("modulo", "online"), ("cel-lite", "default")]
)
def test_a_new_model_is_an_option_of_the_commands(embedding, preset, monkeypatch, tmp_path):
    monkeypatch.setitem(MODELS, "twin", lambda dim, fields=0: WideDeep(dim, fields))
    path = tmp_path / "log.csv"
    celrec.Planted(rows=800, users=20, items=30).interactions().to_frame().write_csv(path)
    words = ["--model", "twin", "--embedding", embedding, "--preset", preset, "--rank", "4"]
    words += ["--compression", "8", "--json"]
    out = tmp_path / "run"
    assert main(["train", str(path), *words, "--out", str(out)]) == 0
    assert main(["evaluate", str(out), str(path)]) == 0
    assert main(["report", str(out)]) == 0
    if embedding != "cel":
        assert main(["online", str(path), "--run", str(tmp_path / "live"), *words]) == 0


def test_a_new_embedding_method_is_an_option_of_the_commands(monkeypatch, tmp_path):
    method = Method("rows shared by chance", Twin)
    monkeypatch.setitem(METHODS, "twin", method)
    path = tmp_path / "log.csv"
    celrec.Planted(rows=800, users=20, items=30).interactions().to_frame().write_csv(path)
    words = ["--embedding", "twin", "--compression", "8", "--rank", "4", "--json"]
    assert main(["train", str(path), "--model", "mf", *words, "--out", str(tmp_path / "run")]) == 0
    assert main(["recommend", str(tmp_path / "run"), "--user", "1"]) == 0
    live = [*words, "--model", "mf", "--preset", "online"]
    assert main(["online", str(path), "--run", str(tmp_path / "live"), *live]) == 0
    assert (
        main(
            ["compare", str(path), *words[:-1], "--model", "mf", "--out", str(tmp_path / "c.json")]
        )
        == 0
    )


def test_a_new_loss_is_an_option_of_the_commands(monkeypatch, tmp_path):
    loss = LOSSES["squared-error"]._replace(of_samples=absolute_error)
    monkeypatch.setitem(LOSSES, "absolute-error", loss)
    path = tmp_path / "log.csv"
    celrec.Planted(rows=800, users=20, items=30).interactions().to_frame().write_csv(path)
    words = ["--model", "widedeep", "--loss", "absolute-error", "--rank", "4"]
    words += ["--compression", "8", "--json"]
    assert main(["train", str(path), *words, "--out", str(tmp_path / "run")]) == 0
    assert main(["online", str(path), "--run", str(tmp_path / "live"), *words]) == 0


def absolute_error(output, target):
    return (output - target).abs()


class Twin(ModuloEmbedding):
    pass


def test_an_embedding_of_ones_own_is_checked_as_the_guide_says():
    results = doctest.DocTestRunner().run(examples("How to add an embedding method")[0])
    assert results.attempted >= 3
    assert results.failed == 0
