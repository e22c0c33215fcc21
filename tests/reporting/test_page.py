import re

import numpy as np
import polars as pl
import pytest
import torch

import celrec
from celrec.config.plan import Plan
from celrec.data.split import Split
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.errors import CelrecError
from celrec.recommender.model import Model
from celrec.reporting.report import LARGEST
from celrec.runs.run_folder import save_run, trained_run
from tests.reporting.written import written

EVIL = "<script>document.title='evil'</script>\"'&"


@pytest.mark.parametrize("kind", ["both", "modulo", "deepfm"])
def test_the_page_needs_nothing_from_outside(runs, parse, tmp_path, kind):
    path = written(runs(kind), out=tmp_path / "page.html", reference=False).path
    page = parse(path)
    for _, attributes in page.tags:
        for name in ("src", "href", "action", "data", "poster", "srcset", "xlink:href"):
            assert attributes.get(name, "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    words = path.read_text()
    assert not re.search(r"url\(|@import|https?:", words)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.tags}


def test_the_same_run_gives_the_same_bytes(runs, tmp_path):
    first, second = (
        written(runs("cel"), out=tmp_path / name, reference=False).path for name in "ab"
    )
    assert first.read_bytes() == second.read_bytes()


def test_every_link_has_a_place_to_go_and_no_name_is_there_twice(runs, parse, tmp_path):
    page = parse(written(runs("both"), out=tmp_path / "page.html", reference=False).path)
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(names) == len(set(names))
    for link in page.all("a"):
        assert link["href"][1:] in names
    for _, attributes in page.tags:
        for name in ("aria-labelledby", "for", "aria-controls"):
            assert attributes.get(name, "main") in names


def test_words_of_users_are_never_markup(tmp_path, parse):
    frame = (
        celrec.Planted(rows=800, users=20, items=10, dim=2, item_clusters=3)
        .interactions()
        .to_frame()
    )
    users = [f"{EVIL}{user}" for user in frame.get_column("user")]
    path = tmp_path / "<b>log.csv"
    frame.with_columns(pl.Series("user", users)).write_csv(path)
    titles = pl.DataFrame({"item": range(10), "title": [f"{EVIL}{n}" for n in range(10)]})
    log = celrec.read(path, item_features=titles)
    plan = Plan(compression="3", side="both", rank=2)
    source = {"data": str(path), "fold": None, "seed": 0}
    fitted = celrec.fit(Split.random(log), plan)
    learned = Split.random(log).train_and_valid()
    save_run(tmp_path / "run", trained_run(learned, fitted.model, plan, {}, source, {}))
    report = written(tmp_path / "run")
    assert report.comparison.missing is None
    page = parse(report.path)
    assert EVIL in page.text
    assert len(page.all("script")) == 3  # that of the page, and two of members
    assert not page.all("b")
    assert EVIL not in report.path.read_text()


def test_a_page_of_very_many_ids_stays_small(tmp_path, parse):
    items = 60_000
    table = ClusteredEmbedding(items, 2, max_clusters=1500)
    table.start_from(torch.arange(items) % 1500)
    users = FullEmbedding(3, 2)
    log = celrec.read(
        {"user": np.arange(items) % 3, "item": np.arange(items), "rating": np.ones(items)},
        item_features=pl.DataFrame({"item": range(items), "title": ["ü" * 300] * items}),
    )
    plan = Plan(compression="1500", rank=2)
    save_run(tmp_path / "run", trained_run(log, Model(users, table), plan, {}, {}, {}))
    report = written(tmp_path / "run")
    assert 500_000 < report.size <= LARGEST
    text = parse(report.path).text
    assert "most active clusters" in text
    assert "only these can be found" in text


def test_mistakes_are_told_in_one_line(runs, tmp_path):
    with pytest.raises(CelrecError, match="not a run folder"):
        written(tmp_path)
    with pytest.raises(CelrecError, match="out must be a file"):
        written(runs("cel"), out=tmp_path)
    with pytest.raises(CelrecError, match="there is no folder"):
        written(runs("cel"), out=tmp_path / "missing" / "page.html")
    assert list(tmp_path.iterdir()) == []
