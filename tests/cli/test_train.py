import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from celrec import Planted, read
from celrec.cli.main import main
from celrec.config import building
from celrec.config.presets import PRESETS
from celrec.data.datasets import library
from celrec.models.registry import MODELS
from celrec.offline import checkpoint, fitting
from celrec.offline.checkpoint import Checkpoint
from celrec.runs.run_folder import load_run
from celrec.runtime.state_file import save_state

# The command, hit by a signal just after it has kept its state for the n-th time.
HIT = """
import os, signal, sys
from celrec.cli.main import main
from celrec.offline import checkpoint, fitting
keep, kept = checkpoint.save_state, 0
def keep_and_be_hit(path, state):
    global kept
    keep(path, state)
    kept += 1
    if kept == int(sys.argv[2]):
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
checkpoint.save_state = keep_and_be_hit
checkpoint.Checkpoint.__init__.__kwdefaults__["every"] = 0.0
sys.exit(main(sys.argv[3:]))
"""
METHODS = {
    "cel": ["--compression", "4"],
    "users": ["--compression", "4", "--side", "users"],
    "both": ["--compression", "4", "--side", "both"],
    "modulo": ["--embedding", "modulo", "--compression", "4"],
    "full": ["--embedding", "full"],
    "auto": ["--compression", "auto"],
    "personal": ["--compression", "4", "--personalise", "20"],
    "all": ["--compression", "auto", "--side", "both", "--personalise", "all"],
}


@pytest.fixture
def quick(monkeypatch):
    for model in PRESETS:
        how = PRESETS[model]["default"]
        schedule, personal = replace(how.schedule, steps=8), replace(how.personal, steps=4)
        monkeypatch.setitem(
            PRESETS[model], "default", replace(how, schedule=schedule, personal=personal)
        )


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.csv"
    planted = Planted(rows=3000, users=40, items=50, dim=3, item_clusters=4)
    planted.interactions().to_frame().write_csv(path)
    return str(path)


def not_json(word):
    raise AssertionError(f"{word} is not JSON")


def trained(capsys, *words):
    assert main(["train", *words, "--rank", "3", "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=not_json)


def assert_one_line(capsys, code, *parts):
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("celrec: ")
    assert captured.err.count("\n") == 1
    for part in parts:
        assert part in captured.err
    assert code == 2


# What is told.


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("model", "table", "users"), [("nmf", 4 * 3 * 4, 41 * 3 * 4), ("mf", 252, 656)]
)
def test_json_tells_errors_clusters_bytes_and_seconds(capsys, log, model, table, users):
    words = [log, "--model", model, "--compression", "4", "--fold", "1/5"]
    result = trained(capsys, *words)
    assert result["clusters"] == 4
    # With biases there are four bytes more for each id, and for unseen ones.
    sizes = {"table": table, "index": 51, "other_side": users}
    # The mean of all ratings is what a model with biases holds besides.
    assert result["bytes"] == {**sizes, "columns": {}, "network": 4 if model == "mf" else 0}
    assert result["test"]["mse"] > 0
    assert set(result["test"]) == {"mse", "mse_cold", "mse_warm", "auc", "auc_cold"}
    assert result["test"]["auc"] is None
    assert result["valid"]["mse"] > 0
    assert result["seconds"] > 0
    assert result["growth"] is None
    assert (result["data"], result["model"], result["rank"]) == (log, model, 3)


@pytest.mark.usefixtures("quick")
def test_every_model_and_method_has_the_same_keys(capsys, log):
    results = [
        trained(capsys, log, "--model", model, *words)
        for model in ("nmf", "mf")
        for words in METHODS.values()
    ]
    assert len({tuple(result) for result in results}) == 1
    for part in ("test", "valid", "bytes"):
        assert len({tuple(result[part]) for result in results}) == 1
    for result, words in zip(results, [*METHODS.values()] * 2, strict=True):
        assert (result["growth"] is not None) == ("auto" in words)
        assert (result["diagnostics"] is None) == ("--embedding" in words)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("model", ["nmf", "mf"])
@pytest.mark.parametrize("method", ["cel", "auto", "personal", "all"])
def test_the_bytes_are_those_of_the_tables_that_are_written(capsys, log, tmp_path, model, method):
    out = tmp_path / "run"
    result = trained(capsys, log, "--model", model, *METHODS[method], "--out", str(out))
    run = load_run(out).model
    items, users = run.item_rows, run.user_rows
    biases = 4 * (51 + 41) if model == "mf" else 0
    weights = items.weight.nbytes + users.weight.nbytes
    indices = sum(
        buffer.nbytes
        for table in (items, users)
        for name, buffer in table.named_buffers()
        if name in ("assignment", "row")
    )
    sizes = [result["bytes"][name] for name in ("table", "index", "other_side")]
    assert sum(sizes) == weights + indices + biases
    assert result["clusters"] == items.num_rows == len(items.weight)
    if method == "personal":
        warm = int((load_run(out).items["interactions"] > 20).sum())
        assert items.private_rows == warm
        assert items.num_rows == warm + items.shared_rows


@pytest.mark.usefixtures("quick")
def test_the_same_seed_prints_the_same_numbers(capsys, log):
    one, two, other = (trained(capsys, log, "--seed", seed) for seed in "334")
    assert one["test"] == two["test"] != other["test"]


@pytest.mark.usefixtures("quick")
def test_people_see_a_table_and_get_a_run_folder(capsys, log, tmp_path):
    out = tmp_path / "run"
    words = ["train", log, "--compression", "auto", "--rank", "4", "--out", str(out)]
    assert main(words) == 0
    captured = capsys.readouterr()
    shown = " ".join(captured.out.split())
    run = load_run(out)
    assert run.source["data"] == log
    assert f"test MSE {run.result['test']['mse']:.4f} (validation" in shown
    assert f"rows of items {run.result['clusters']:,}, after" in shown
    assert "of index" in shown
    assert "why so many up to" in shown
    assert captured.err == ""
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.usefixtures("quick")
def test_long_names_and_brackets_are_shown_as_they_are(capsys, log, tmp_path):
    odd = tmp_path / "[bold]x[/" / "nothing].csv"
    odd.parent.mkdir()
    odd.write_bytes(Path(log).read_bytes())
    out = tmp_path / "[red]run"
    assert main(["train", str(odd), "--rank", "3", "--out", str(out)]) == 0
    shown = "".join(capsys.readouterr().out.split())
    assert str(odd) in shown
    assert str(out) in shown


def test_auto_finds_what_was_planted(capsys, tmp_path):
    planted = Planted(40_000, 300, 200, dim=3, item_clusters=8, noise=0.0, seed=1)
    path = tmp_path / "log.csv"
    planted.interactions().to_frame().write_csv(path)
    words = ["--model", "nmf", "--compression", "auto", "--rank", "6", "--json"]
    assert main(["train", str(path), *words]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["clusters"] == 8
    assert result["growth"].startswith("up to ")
    assert "could be merged with others without loss" in result["growth"]


# Starts.


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("start", ["random:5", "ratings:5"])
def test_clusters_can_be_given_and_kept(capsys, log, tmp_path, start):
    words = ["--start", start, "--frozen", "--seed", "2"]
    result = trained(capsys, log, *words, "--out", str(tmp_path / "one"))
    assert result["clusters"] == 5
    assert (result["start"], result["frozen"]) == (start, True)
    words = ["--start", str(tmp_path / "one"), "--frozen", "--model", "mf", "--compression", "2"]
    trained(capsys, log, *words, "--out", str(tmp_path / "two"))
    one, two = (load_run(tmp_path / name).items for name in ("one", "two"))
    assert one.select("id", "cluster").equals(two.select("id", "cluster"))


@pytest.mark.usefixtures("quick")
def test_clusters_of_a_run_serve_other_data(capsys, log, tmp_path):
    trained(capsys, log, "--start", "ratings:4", "--frozen", "--out", str(tmp_path / "one"))
    table = pl.read_csv(log).filter(pl.col("item") >= 10).reverse()
    more = pl.DataFrame({"user": [0, 1], "item": [900, 901], "target": [1.0, 2.0]})
    table = pl.concat([table.select("user", "item", "target"), more])
    table.write_csv(tmp_path / "other.csv")
    words = ["--start", str(tmp_path / "one"), "--frozen", "--out", str(tmp_path / "two")]
    trained(capsys, str(tmp_path / "other.csv"), *words)
    one, two = (load_run(tmp_path / name).items for name in ("one", "two"))
    both = one.join(two, on="id", suffix="_there")
    assert len(both) >= 35
    # One for one, under other names; the strangers are with the many.
    pairs = set(zip(both["cluster"], both["cluster_there"], strict=True))
    assert len(pairs) == both["cluster"].n_unique() == both["cluster_there"].n_unique()
    largest = one["cluster"].value_counts().sort("count", "cluster", descending=[True, False])
    home = dict(pairs)[largest["cluster"][0]]
    assert two.filter(pl.col("id") >= 900)["cluster"].to_list() == [home, home]


def test_strings_and_integers_do_not_meet(capsys, log, tmp_path):
    named = pl.read_csv(log).with_columns(pl.format("item {}", "item").alias("item"))
    named.write_csv(tmp_path / "named.csv")
    words = ["--start", "random:3", "--frozen", "--out", str(tmp_path / "run")]
    trained(capsys, log, *words)
    words = ["train", str(tmp_path / "named.csv"), "--start", str(tmp_path / "run"), "--frozen"]
    assert_one_line(capsys, main(words), "ids of", "of another kind than these")


# Mistakes.


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--compression", "tiny"], "compression must be a share"),
        (["--compression", "nan%"], "compression must be a share"),
        (["--compression", "-5"], "compression must not be negative, not '-5'"),
        (["--embedding", "magic"], "embedding must be one of cel, "),
        (["--model", "magic"], "model must be one of nmf, mf, deepfm, dien, din,"),
        (["--side", "left"], "side must be one of items, users, both, not 'left'"),
        (["--rank", "0"], "rank must be positive, not 0"),
        (["--seed", "-1"], "seed must lie in 0"),
        (["--seed", str(10**30)], "seed must lie in 0"),
        (["--fold", "one"], "fold must look like 1/5"),
        (["--fold", "9/5"], "fold must lie in 1 … 5"),
        (["--preset", "x"], "preset must be one of"),
        (
            ["--model", "mf", "--preset", "paper"],
            "preset must be one of default, posterior, descent, online",
        ),
        (["--personalise", "some"], "personalise must be none, all or a number"),
        (["--start", "two"], "start must be one of one, random, ratings, genres or a run folder"),
        (["--start", ""], "start must be one of"),
        (["--start", "ratings"], "start needs a number of clusters, as in ratings:20"),
        (["--start", "genres"], "no genres of items"),
        (["--start", "random:4", "--compression", "3"], "compression '3' allows 3; raise it"),
        (["--start", "one", "--embedding", "full", "--frozen"], "frozen is for embedding 'cel'"),
        (["--frozen", "--compression", "auto"], "leave one out"),
        (["--resume"], "resume needs --out"),
        (["--model", "mmoe"], "positive is missing: model 'mmoe' also learns"),
        (
            ["--model", "nmf", "--loss", "ranking"],
            "loss must be one of squared-error, not 'ranking'",
        ),
        (["--model", "din", "--loss", "hinge"], "loss must be one of squared-error, cross-entropy"),
        (["--model", "din", "--loss", "cross-entropy"], "is for targets 0 and 1; say from which"),
        (["--model", "din", "--id-column", "shop"], "no column 'shop'; the columns are 'user'"),
        (["--model", "din", "--id-column", "item"], "one column is given for two roles"),
        (["--model", "neumf"], "product_dim must lie in 1 … 2"),
        (["--out", "/dev/null/run"], "cannot write in folder"),
        (["--out", "."], "a run needs a folder of its own"),
        (["--out", "/"], "a run needs a folder of its own"),
    ],
)
@pytest.mark.usefixtures("quick")
def test_mistakes_are_one_line(capsys, log, words, told):
    rank = [] if "--rank" in words else ["--rank", "3"]
    assert_one_line(capsys, main(["train", log, *rank, *words]), told)


def test_nothing_but_a_run_is_ever_replaced(capsys, log, tmp_path):
    copy = tmp_path / "log.csv"
    copy.write_bytes(Path(log).read_bytes())
    for place in (copy, tmp_path):
        code = main(["train", str(copy), "--rank", "3", "--out", str(place)])
        assert_one_line(capsys, code, "is there and no run folder")
    assert copy.read_bytes() == Path(log).read_bytes()


# Odd data.

SOME = np.random.default_rng(0)
ODD = {
    "one user": {"user": [1] * 60, "item": SOME.integers(9, size=60)},
    "one item": {"user": SOME.integers(9, size=60), "item": [1] * 60},
    "one pair": {"user": [1] * 30, "item": [2] * 30},
    "equal ratings": {
        "user": SOME.integers(9, size=60),
        "item": SOME.integers(9, size=60),
        "target": [4.0] * 60,
    },
    "9 rows": {"user": [1, 2, 3] * 3, "item": [1] * 4 + [2] * 5},
    "3 rows": {"user": [1, 2, 3], "item": [1, 2, 1]},
    "1 row": {"user": [1], "item": [1]},
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("model", ["nmf", "mf"])
def test_odd_data_give_a_result_or_one_line(capsys, tmp_path, name, model):
    columns = dict(ODD[name])
    columns.setdefault("target", 1 + np.arange(len(columns["user"])) % 5)
    path = tmp_path / "log.csv"
    pl.DataFrame(columns).write_csv(path)
    rest = len(path.read_text().splitlines()) - 1
    rest -= round(0.2 * rest)
    out = tmp_path / "run"
    for method in ("cel", "modulo", "full", "all"):
        words = ["--model", model, "--rank", "3", "--out", str(out), *METHODS[method]]
        code = main(["train", str(path), *words])
        if "auto" in words and not round(0.1 * rest):
            assert_one_line(capsys, code, "compression 'auto' needs validation data")
            continue
        captured = capsys.readouterr()
        assert (code, captured.err) == (0, ""), method
        assert "nan" not in captured.out
        load_run(out)
        result = json.loads((out / "result.json").read_text(), parse_constant=not_json)
        errors = [result["valid"]["mse"], *result["test"].values()]
        assert all(error is None or math.isfinite(error) for error in errors)
        assert (result["valid"]["mse"] is None) == (not round(0.1 * rest))


@pytest.mark.usefixtures("quick")
def test_people_are_told_where_there_was_nothing_to_judge_by(capsys, tmp_path):
    path = tmp_path / "log.csv"
    pl.DataFrame({"user": [1, 2], "item": [1, 2], "target": [1.0, 5.0]}).write_csv(path)
    assert main(["train", str(path), "--rank", "3"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "test MSE no test data (validation without data)" in shown
    assert "cold items none in the test data" in shown


# Networks.


@pytest.fixture
def quick_networks(quick, monkeypatch):  # noqa: ARG001
    for model in MODELS:
        for preset, how in PRESETS[model].items():
            short = {"steps": 4, "validate_every": 2}
            schedule, personal = replace(how.schedule, **short), replace(how.personal, **short)
            how = replace(how, schedule=schedule, personal=personal)
            monkeypatch.setitem(PRESETS[model], preset, how)
    monkeypatch.setattr(building, "HISTORY_LENGTH", 4)


@pytest.fixture(scope="module")
def shops(tmp_path_factory):
    """A log with a column of shops, of which some are missing."""
    path = tmp_path_factory.mktemp("log") / "shops.csv"
    rows = Planted(rows=800, users=30, items=40, dim=2, item_clusters=4).interactions().to_frame()
    shop = [None if n % 7 == 0 else f"shop {n * 5 % 11}" for n in range(800)]
    rows.with_columns(shop=pl.Series(shop), word=pl.Series(range(800)) % 6).write_csv(path)
    return str(path)


def evaluated(capsys, run, *words):
    assert main(["evaluate", str(run), *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=not_json)


NETWORKS = {
    "din": ["--model", "din"],
    "dien": ["--model", "dien", "--preset", "scratch", "--personalise", "20"],
    "deepfm": ["--model", "deepfm", "--loss", "cross-entropy", "--positive", "3"],
    "ranking": ["--model", "din", "--loss", "ranking", "--positive", "2.5"],
    "mmoe": ["--model", "mmoe", "--positive", "3", "--side", "both"],
    "widedeep": ["--model", "widedeep", "--embedding", "modulo"],
    "neumf": ["--model", "neumf", "--embedding", "full", "--rank", "10"],
}


@pytest.mark.usefixtures("quick_networks")
@pytest.mark.parametrize("columns", [[], ["--id-column", "shop", "--id-column", "word"]])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_trained_tested_written_and_tested_again(
    capsys, shops, tmp_path, name, columns
):
    words = ["train", shops, "--rank", "4", *NETWORKS[name], *columns, "--compression", "4"]
    out = tmp_path / "run"
    assert main([*words, "--fold", "1/5", "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out, parse_constant=not_json)
    assert (result["model"], result["fold"]) == (NETWORKS[name][1], "1/5")
    test = result["test"]
    asked = "cross-entropy" in words or "ranking" in words
    assert (test["auc"] is not None) == asked
    assert (test["mse"] is None) == ("ranking" in words)
    assert ("conversion_auc" in test) == (name == "mmoe")
    assert list(result["valid"]) == ["loss" if asked else "mse"]
    # Evaluated anew, it comes to the same numbers.
    assert evaluated(capsys, out)["test"] == test
    model = load_run(out).model
    names = ["shop", "word"] if columns else []
    assert list(result["bytes"]["columns"]) == list(load_run(out).columns) == names
    for column, size in result["bytes"]["columns"].items():
        assert size == model.tables[column].memory().total
    network = sum(p.nbytes for p in model.model.parameters())
    assert result["bytes"]["network"] == network
    assert result["bytes"]["table"] == model.items.memory().table


@pytest.mark.usefixtures("quick_networks")
def test_other_data_are_evaluated_with_what_is_known_of_the_past(capsys, shops, tmp_path):
    out, later = tmp_path / "run", tmp_path / "later.csv"
    words = ["--model", "din", "--id-column", "shop", "--out", str(out)]
    trained(capsys, shops, *words)
    rows = pl.read_csv(shops)[:50].with_columns(pl.col("timestamp") + 10**9)
    strangers = pl.DataFrame({"user": [900], "item": [900], "target": [3.0], "timestamp": [1]})
    strangers = strangers.with_columns(shop=pl.lit("new shop"), word=pl.lit(1, pl.Int64))
    pl.concat([rows, strangers.cast(dict(rows.schema))]).write_csv(later)
    told = evaluated(capsys, out, str(later))
    assert (told["rows"], told["unseen"]) == (51, {"users": 1, "items": 1})
    assert told["test"]["mse"] > 0
    rows.drop("shop").write_csv(later)
    code = main(["evaluate", str(out), str(later)])
    assert_one_line(capsys, code, "no column 'shop'")


@pytest.mark.usefixtures("quick_networks")
def test_clusters_of_a_further_column_are_shown(capsys, shops, tmp_path):
    out = tmp_path / "run"
    words = ["--model", "deepfm", "--preset", "scratch", "--compression", "3"]
    trained(capsys, shops, *words, "--id-column", "shop", "--out", str(out))
    assert main(["clusters", str(out), "--side", "shop", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(cluster["members"] for cluster in found) == 11
    assert len(found) == load_run(out).model.tables["shop"].num_clusters > 1
    learned = pl.read_csv(shops).filter(pl.col("shop").is_not_null())
    assert sum(cluster["interactions"] for cluster in found) <= len(learned)
    assert main(["clusters", str(out), "--side", "shop"]) == 0
    shown = capsys.readouterr().out
    assert "most active members" in shown
    assert "shop 5" in shown
    code = main(["clusters", str(out), "--side", "word"])
    assert_one_line(capsys, code, "side must be one of items, users, shop, not 'word'")


@pytest.mark.usefixtures("quick_networks")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "din", "--id-column", "shop"], ["test MSE", "shop table", "network"]),
        (["--model", "mmoe", "--positive", "3"], ["test MSE", "conversion AUC", "network"]),
        (["--model", "deepfm", "--loss", "ranking"], ["test AUC", "(validation loss", "network"]),
    ],
)
def test_people_see_what_a_network_reached(capsys, shops, words, told):
    assert main(["train", shops, "--rank", "4", *words]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    shown = " ".join(captured.out.split())
    for part in told:
        assert part in shown
    assert ("test MSE" in shown) == ("ranking" not in words)


@pytest.mark.usefixtures("quick_networks")
def test_features_can_be_left_out(capsys, shops, tmp_path, monkeypatch):
    genres = pl.DataFrame({"item": range(40), "genres": [["War", "Drama"], ["Comedy"]] * 20})
    log = read(shops, item_features=genres)
    monkeypatch.setattr(library, "open_data", lambda *_, **__: log)
    sizes = {}
    for more in ("--features", "--no-features"):
        words = ["--model", "din", more, "--fold", "1/5", "--out", str(tmp_path / "run")]
        result = trained(capsys, "somewhere", *words)
        assert result["features"] == (more == "--features")
        assert evaluated(capsys, tmp_path / "run")["test"] == result["test"]
        sizes[more] = result["bytes"]["network"]
    # A field of three numbers for each of the 16 units of the first layer, three rows of values,
    # and for 40 items and unseen ones which two values they have.
    assert sizes["--features"] - sizes["--no-features"] == 4 * (3 * 16 + 3 * 3 + 41 * 2)


@pytest.mark.usefixtures("quick_networks")
def test_a_network_that_was_interrupted_goes_on(capsys, shops, tmp_path, monkeypatch):
    monkeypatch.setitem(Checkpoint.__init__.__kwdefaults__, "every", 0.0)
    words = ["--rank", "3", "--model", "din", "--id-column", "shop", "--compression", "4"]
    one, other = tmp_path / "one", tmp_path / "other"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 7)
        assert main(["train", shops, *words, "--out", str(one)]) == 130
    assert main(["train", shops, *words, "--out", str(one), "--resume"]) == 0
    assert main(["train", shops, *words, "--out", str(other)]) == 0
    assert results(one) == results(other)
    capsys.readouterr()


# Stopped and resumed.

LONG = ["--rank", "3", "--compression", "auto", "--personalise", "20", "--side", "both"]


def hit(signal_name, times, *words):
    """What becomes of the command when it is hit."""
    command = [sys.executable, "-c", HIT, signal_name, str(times), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def results(out):
    """All that was written, but for the seconds."""
    result = json.loads((out / "result.json").read_text())
    del result["seconds"]
    rest = {path.name: path.read_bytes() for path in out.iterdir() if path.name != "result.json"}
    return result, rest


def test_a_run_that_is_killed_and_then_interrupted_comes_to_the_same(capsys, log, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    command = ["train", log, *LONG, "--out", str(one)]
    killed = hit("SIGKILL", 3, *command)
    assert killed.returncode == -signal.SIGKILL
    assert (killed.stdout, killed.stderr) == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["one.unfinished"]
    interrupted = hit("SIGINT", 15, *command, "--resume")
    assert interrupted.returncode == 130
    assert interrupted.stdout == ""
    assert interrupted.stderr == "celrec: interrupted; the same command with --resume goes on\n"
    assert [path.name for path in tmp_path.iterdir()] == ["one.unfinished"]
    assert main([*command, "--resume"]) == 0
    assert main(["train", log, *LONG, "--out", str(other)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]
    assert results(one) == results(other)
    capsys.readouterr()


@pytest.fixture
def stopped(log, tmp_path, monkeypatch, capsys):
    """A run folder for which training was interrupted, and the command that was."""
    monkeypatch.setitem(Checkpoint.__init__.__kwdefaults__, "every", 0.0)
    copy, out = tmp_path / "log.csv", tmp_path / "run"
    copy.write_bytes(Path(log).read_bytes())
    command = ["train", str(copy), "--rank", "3", "--compression", "5", "--out", str(out)]
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        assert main(command) == 130
    assert capsys.readouterr().err.endswith("--resume goes on\n")
    return out, command


def interrupt_after(patch, times):
    kept = 0

    def keep(path, state):
        nonlocal kept
        if kept == times:
            raise KeyboardInterrupt
        kept += 1
        save_state(path, state)

    patch.setattr(checkpoint, "save_state", keep)


def test_before_a_state_was_kept_there_is_nothing_to_resume(capsys, log, tmp_path, monkeypatch):
    monkeypatch.setitem(Checkpoint.__init__.__kwdefaults__, "every", 0.0)
    interrupt_after(monkeypatch, 0)
    for more in ([], ["--resume"]):
        command = ["train", log, "--rank", "3", "--out", str(tmp_path / "run"), *more]
        assert main(command) == 130
        assert capsys.readouterr().err == "celrec: interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_there_is_nothing_to_resume(capsys, log, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "personalise", interrupted)
    assert main(["train", log, "--rank", "3", "--personalise", "all"]) == 130
    assert capsys.readouterr().err == "celrec: interrupted\n"


def test_an_interrupted_run_that_resumes_and_is_interrupted_can_resume(
    capsys, stopped, monkeypatch
):
    _, command = stopped
    interrupt_after(monkeypatch, 0)
    assert main([*command, "--resume"]) == 130
    assert capsys.readouterr().err.endswith("--resume goes on\n")


def test_a_resumed_run_leaves_nothing_behind(capsys, stopped):
    out, command = stopped
    assert out.with_name("run.unfinished").is_file()
    assert not out.exists()
    assert main([*command, "--resume"]) == 0
    assert load_run(out).result["steps"] > 0
    assert not out.with_name("run.unfinished").exists()
    capsys.readouterr()


def test_without_resuming_what_is_unfinished_is_overwritten(capsys, stopped):
    out, command = stopped
    state = out.with_name("run.unfinished")
    state.write_bytes(b"of no use")
    assert main(command) == 0
    assert load_run(out)
    assert not state.exists()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--seed", "7"], "was written with seed 0, not 7"),
        (["--compression", "6"], "was written with compression '5', not '6'"),
        (["--model", "nmf"], "was written with model 'mf', not 'nmf'"),
        (["--personalise", "all"], "was written with personalise 'none', not 'all'"),
        (["--fold", "1/5"], "was written with fold None, not '1/5'"),
        (["--drop-invalid"], "was written with reading"),
        (["--rank", "4"], "was written with rank 3, not 4"),
    ],
)
def test_other_arguments_are_told_when_resuming(capsys, stopped, words, told):
    out, command = stopped
    code = main([*command, *words, "--resume"])
    assert_one_line(capsys, code, told, "give the same arguments, or train anew without --resume")
    assert out.with_name("run.unfinished").is_file()


def test_a_damaged_state_is_told_when_resuming(capsys, stopped):
    out, command = stopped
    state = out.with_name("run.unfinished")
    state.write_bytes(state.read_bytes()[:-1])
    assert_one_line(capsys, main([*command, "--resume"]), str(state), "cannot read")


def test_other_ratings_are_told_when_resuming(capsys, stopped):
    _, command = stopped
    rows = pl.read_csv(command[1])
    rows.with_columns(pl.col("target") + 1).write_csv(command[1])
    told = "training on other data"
    assert_one_line(capsys, main([*command, "--resume"]), told, "without --resume")


@pytest.mark.usefixtures("quick")
def test_where_nothing_is_unfinished_resuming_is_training(capsys, log, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    assert main(["train", log, "--rank", "3", "--out", str(one), "--resume"]) == 0
    assert main(["train", log, "--rank", "3", "--out", str(other)]) == 0
    assert results(one) == results(other)
    assert sorted(os.listdir(tmp_path)) == ["one", "other"]
    capsys.readouterr()


# What is picked where nothing is said.


def clicks(tmp_path, **columns):
    frame = Planted(3_000, 60, 40, dim=2, item_clusters=4).interactions().to_frame()
    path = tmp_path / "clicks.csv"
    frame.select("user", "item", **columns).unique(maintain_order=True).write_csv(path)
    return str(path)


def test_a_csv_of_bare_clicks_is_enough(capsys, tmp_path):
    path, out = clicks(tmp_path), tmp_path / "run"
    result = trained(capsys, path, "--out", str(out))
    assert (result["model"], result["loss"], result["negatives"]) == ("mf", "squared-error", 10)
    assert "all targets are equal" in result["picked"]
    assert result["test"]["mse"] is None
    assert 0 <= result["test"]["auc"] <= 1
    assert main(["train", path, "--rank", "3"]) == 0
    shown = capsys.readouterr().out
    assert "test AUC" in shown
    assert "implicit feedback, learned with negative sampling" in " ".join(shown.split())
    # It is measured in the same way afterwards, by the held-out part and by a file like it.
    for data in ([], [path]):
        assert main(["evaluate", str(out), *data, "-k", "5", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["ranking"]["relevant_from"] is None
        if not data:
            assert found["test"] == result["test"]
    assert main(["recommend", str(out), "--user", "1", "--json"]) == 0


def test_targets_of_0_and_1_have_cross_entropy_unless_somebody_says_otherwise(capsys, tmp_path):
    path = clicks(tmp_path, clicked=(pl.col("target") > 3).cast(pl.Int8))
    result = trained(capsys, path)
    assert (result["loss"], result["embedding"]) == ("cross-entropy", "cel-lite")
    assert "targets are 0 and 1" in result["picked"]
    for words, expected in (
        (["--loss", "squared-error"], {"loss": "squared-error", "negatives": 0, "model": "mf"}),
        (["--model", "nmf"], {"loss": "squared-error", "model": "nmf", "embedding": "cel"}),
        (["--model", "deepfm"], {"loss": "cross-entropy", "model": "deepfm"}),
        (["--negatives", "2"], {"loss": "squared-error", "negatives": 2, "model": "mf"}),
        (["--embedding", "cel"], {"loss": "cross-entropy", "model": "deepfm"}),
    ):
        result = trained(capsys, path, *words)
        assert {name: result[name] for name in expected} == expected


def test_a_model_of_ratings_is_not_measured_on_a_log_without_any(capsys, log, tmp_path):
    assert main(["train", log, "--rank", "3", "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    code = main(["evaluate", str(tmp_path / "run"), clicks(tmp_path)])
    assert_one_line(capsys, code, "no target column", "name it with target=")
