import json

import polars as pl
import pytest
import torch

import celrec
from celrec.config.plan import Plan
from celrec.data.datasets.library import open_data
from celrec.data.split import Split
from celrec.embeddings.full import FullEmbedding
from celrec.evaluation.comparison import measure
from celrec.evaluation.metrics import Accuracy
from celrec.reporting.report import LARGEST
from celrec.runs.run_folder import load_run, save_run, trained_run
from tests.inference.small_models import small_log, small_model
from tests.reporting.conftest import KINDS
from tests.reporting.written import written

CLUSTERED = set(KINDS) - {"modulo", "ae", "full", "all"}
EVIL = "<script>document.title='evil'</script>\"'&"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_has_a_page(runs, parse, tmp_path, kind):
    report = written(runs(kind), out=tmp_path / "page.html", reference=False)
    page = parse(report.path)
    assert report.size == len(report.path.read_bytes()) <= LARGEST
    told = json.loads((runs(kind) / "result.json").read_text())["test"]
    found = report.comparison.kind("run").figures.test
    assert {name: found[name] for name in told} == pytest.approx(told)
    metric = report.comparison.evaluator.metric
    shown = [value for name, value in found.items() if value and name.startswith(metric)]
    assert {repr(value) for value in shown} <= set(page.data)
    assert len(page.all("h1")) == 1
    explorers = [one for one in page.all("div") if one.get("class") == "explorer"]
    assert bool(explorers) == (kind in CLUSTERED)
    assert ("No table is clustered" in page.text) == (not explorers)


def test_each_level_has_a_tree_and_a_listing(parse, tmp_path):
    log, plan = small_log(), Plan("cel", "5", rank=6, model="deepfm", side="both")
    model = small_model(log, plan, levels=2)
    level = model.items.clustered_levels[1]
    level.start_from(torch.zeros(level.num_embeddings, dtype=torch.int64))
    level.split(0, torch.tensor([1, 2, 3]))
    save_run(tmp_path / "run", trained_run(log, model, plan, {}, {}, {}))
    page = parse(written(tmp_path / "run", out=tmp_path / "page.html", reference=False).path)
    found = [one["data-key"] for one in page.all("div") if one.get("class") == "explorer"]
    assert found == [f"{side}-level-{n}" for side in ("items", "users", "column-0") for n in (1, 2)]
    assert "2 clusters of items in level 2" in page.text
    assert "All items in level 2 began in one cluster" in page.text


def test_the_numbers_are_those_that_are_measured(runs, parse, tmp_path):
    folder = runs("both")
    report = written(folder, out=tmp_path / "page.html")
    run = load_run(folder)
    split = Split.named(open_data(run.source["data"], columns=[]), None, 3)
    learned = split.train_and_valid()
    strength = celrec.BiasModel.tuned(split.train, split.valid).strength
    biases = celrec.BiasModel.fit(learned, strength)
    full = celrec.fit(split, Plan("full", side="both", rank=4, seed=3)).model
    expected = {
        "run": measure(run.model, run.plan, split.test, learned.item_counts)["mse"],
        "biases": Accuracy.of(biases.predict(split.test), split.test, learned.item_counts).mse,
        "full": measure(full, run.plan, split.test, learned.item_counts)["mse"],
    }
    found = {name: report.comparison.kind(name).figures.test["mse"] for name in expected}
    assert found == pytest.approx(expected, rel=1e-9)
    assert {repr(value) for value in found.values()} <= set(parse(report.path).data)


def test_bytes_in_the_page_are_those_of_the_tables(runs, parse, tmp_path):
    folder = runs("cel")
    page = parse(written(folder, out=tmp_path / "page.html", reference=False).path)
    items = load_run(folder).model.items
    memory = items.memory()
    full = FullEmbedding(items.num_embeddings, items.embedding_dim).memory().total
    training = json.loads((folder / "result.json").read_text())["training_bytes"]["items"]
    assert training > full  # the full fit is there while it is compressed
    for number in (memory.table, memory.index, memory.total, training):
        assert str(number) in page.data
    assert str(full) in page.data
    assert repr(full / memory.total) in page.data


def test_errors_by_frequency_add_up_to_the_error(runs, tmp_path):
    report = written(runs("cel"), out=tmp_path / "page.html", reference=False)
    evaluator, own = report.comparison.evaluator, report.comparison.kind("run").figures
    for frequency, parts in ((evaluator.items, own.by_items), (evaluator.users, own.by_users)):
        known = [(rows, part) for rows, part in zip(frequency.rows, parts, strict=True) if rows]
        total = sum(rows * part for rows, part in known) / sum(frequency.rows)
        assert total == pytest.approx(own.test["mse"])
        assert sum(frequency.rows) == len(evaluator.test)


def test_targets_of_0_and_1_have_auc_and_log_loss(runs, parse, tmp_path):
    report = written(runs("deepfm"), out=tmp_path / "page.html", reference=False)
    figures = report.comparison.kind("run").figures
    assert report.comparison.evaluator.metric == "auc"
    assert 0 < figures.test["log_loss"] < 2
    assert figures.test["auc"] is not None
    text = parse(report.path).text
    assert "Log loss" in text
    assert "test AUC" in text


def test_a_run_for_ranking_is_compared_with_popularity(runs, parse, tmp_path):
    report = written(runs("ranking"), out=tmp_path / "page.html", reference=False)
    assert [one.kind for one in report.comparison.compared_models] == ["means", "run"]
    assert report.comparison.kind("means").figures.ranking["users"] > 0
    assert "a random item" in parse(report.path).text


def test_splits_and_moves_are_in_the_learning_curve(runs, parse, tmp_path):
    page = parse(written(runs("data-driven"), out=tmp_path / "page.html", reference=False).path)
    text = page.text
    assert "clusters were split" in text
    assert "Rows and clusters" in text
    judged = pl.read_parquet(runs("data-driven") / "judgements.parquet")
    assert judged.get_column("user_clusters").max() == 4
    assert repr(judged.get_column("valid_loss").min()) in page.data


@pytest.mark.parametrize(
    ("kind", "sides", "headline"),
    [
        ("users", "4 rows of users", "CEL: 40 users on 4 rows"),
        ("levels", "4 rows of items in 2 levels", "CEL: 50 items on 4 rows in 2 levels"),
    ],
)
def test_a_fit_that_is_compressed_has_a_curve_and_the_compression_words(
    runs, parse, tmp_path, kind, sides, headline
):
    text = parse(written(runs(kind), out=tmp_path / "page.html", reference=False).path).text
    records = pl.read_parquet(runs(kind) / "judgements.parquet")
    (loss,) = records.filter(pl.col("stage") == "compress").get_column("valid_loss")
    assert "The fit that is compressed: loss by step" in text
    assert "clusters were split" not in text
    assert f"Its predictions are compressed to {sides}; validation loss {loss:.4f}." in text
    assert headline in text
    assert "from a fit with a row for each id" in text


def test_judgements_of_an_earlier_version_can_still_be_read(copied, parse):
    folder = copied("data-driven")
    path = folder / "judgements.parquet"
    pl.read_parquet(path).drop("user_clusters").write_parquet(path)
    assert "loss by step" in parse(written(folder, reference=False).path).text


def test_a_run_that_tells_nothing_about_itself_has_a_page_too(tmp_path, parse):
    log = celrec.Planted(rows=500, users=20, items=10, dim=2, item_clusters=3).interactions()
    plan = Plan(compression="3", rank=2)
    model = celrec.fit(Split.random(log), plan).model
    save_run(tmp_path / "run", trained_run(log, model, plan, {}, {}, {}))
    report = written(tmp_path / "run")
    text = parse(report.path).text
    assert report.comparison.missing == "the run does not record its training and test data"
    assert report.comparison.missing in text
    assert "no record of its training" in text
    assert "3 clusters of items" in text


def test_an_online_run_tells_how_it_predicted_before_it_learned(online, parse, tmp_path):
    page = parse(written(online, out=tmp_path / "page.html").path)
    assert "Nothing could be measured on test data" in page.text
    assert "just before it was learned" in page.text
    assert "learned in one pass" in page.text
    assert "1000" in page.data  # events


def test_of_data_that_are_gone_the_page_tells_so(copied, parse, log, tmp_path):
    folder = copied("cel")
    config = json.loads((folder / "config.json").read_text())
    config["source"]["data"] = str(tmp_path / "gone.csv")
    (folder / "config.json").write_text(json.dumps(config))
    report = written(folder)
    assert "gone.csv" in report.comparison.missing
    assert "gone.csv" in parse(report.path).text
    assert not (folder / "reference.json").exists()
    changed = pl.read_csv(log).slice(1)
    changed.write_csv(tmp_path / "gone.csv")
    assert "has changed" in written(folder).comparison.missing
