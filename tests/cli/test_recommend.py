import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from celrec import Planted, Split, read
from celrec.cli.main import main
from celrec.config.presets import PRESETS
from celrec.evaluation.ranking import Ranking
from celrec.inference.top_items import TopItems
from celrec.inference.top_k import TopK
from celrec.runs.run_folder import load_run
from celrec.runs.seen_log import seen_in

RUNS = {
    "cel": [],
    "mf": ["--model", "mf", "--personalise", "40"],
    "din": ["--model", "din", "--loss", "ranking", "--positive", "3"],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a log, runs of some kinds, and an online one."""
    folder = tmp_path_factory.mktemp("trained")
    planted = Planted(rows=1500, users=40, items=50, dim=3, item_clusters=4)
    planted.interactions().to_frame().write_csv(folder / "log.csv")
    with pytest.MonkeyPatch.context() as patch:
        for presets in PRESETS.values():
            for name, how in presets.items():
                schedule, personal = replace(how.schedule, steps=6), replace(how.personal, steps=4)
                patch.setitem(presets, name, replace(how, schedule=schedule, personal=personal))
        words = [str(folder / "log.csv"), "--rank", "4", "--compression", "4"]
        for name, more in RUNS.items():
            assert main(["train", *words, *more, "--out", str(folder / name)]) == 0
    assert main(["online", *words, "--run", str(folder / "online")]) == 0
    return folder


def log_of(trained):
    return pl.read_csv(trained / "log.csv")


def printed(capsys, *words):
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# One user.


@pytest.mark.parametrize("name", [*RUNS, "online"])
def test_recommended_is_what_the_user_has_not_seen_not_even_in_the_test_part(capsys, trained, name):
    log = log_of(trained)
    for user in log["user"].unique()[:3]:
        found = printed(capsys, "recommend", trained / name, "--user", user, "-k", 50)
        kind = str if name == "online" else int  # ids in a stream of text are words
        assert (found["user"], found["known"]) == (kind(user), True)
        items = [int(one["item"]) for one in found["recommended"]]
        seen = set(log.filter(pl.col("user") == user)["item"])
        assert set(items) == set(log["item"]) - seen
        scores = [one["score"] for one in found["recommended"]]
        assert scores == sorted(scores, reverse=True)
        everything = printed(
            capsys, "recommend", trained / name, "--user", user, "-k", 50, "--with-seen"
        )
        assert {int(one["item"]) for one in everything["recommended"]} == set(log["item"])


def test_what_is_printed_is_what_the_run_recommends(capsys, trained, tmp_path):
    run = load_run(trained / "cel", seen=True)
    found = printed(capsys, "recommend", trained / "cel", "--user", "7", "--ties", "recency")
    expected = TopItems(run, ties="recency").recommend([7])
    assert found["recommended"] == expected.select("item", "score").to_dicts()
    ids = log_of(trained)["item"].unique().to_list()
    (tmp_path / "allowed.txt").write_text("\n".join(map(str, [*ids[:9], "no item"])))
    pl.DataFrame({"item": ids[:3]}).write_csv(tmp_path / "banned.csv")
    filters = ["--allowed", tmp_path / "allowed.txt", "--banned", tmp_path / "banned.csv"]
    found = printed(capsys, "recommend", trained / "cel", "--user", 7, "--with-seen", *filters)
    assert {one["item"] for one in found["recommended"]} == set(ids[3:9])


def test_people_see_a_table_and_hear_of_strangers(capsys, trained):
    capsys.readouterr()
    assert main(["recommend", str(trained / "cel"), "--user", "stranger", "-k", "3"]) == 0
    out, err = capsys.readouterr()
    assert err == (
        "celrec: user 'stranger' is not known; the recommendations are those of a new user\n"
    )
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert lines[0] == ["item", "score"]
    run = load_run(trained / "cel", seen=True)
    expected = TopItems(run).recommend(["stranger"], 3)
    told = [[str(p), str(i), f"{s:.3f}"] for _, p, i, s in expected.iter_rows()]
    assert lines[2:] == told


def test_titles_are_shown_where_they_are_known(capsys, trained, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (trained / "cel").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    items = pl.read_parquet(copy / "items.parquet")
    titled = items.with_columns(title="Film [" + pl.col("id").cast(pl.String) + "] :smile:")
    titled.write_parquet(copy / "items.parquet")
    found = printed(capsys, "recommend", copy, "--user", 1, "-k", 2)
    assert [one["title"] for one in found["recommended"]] == [
        f"Film [{one['item']}] :smile:" for one in found["recommended"]
    ]
    for words in (["recommend", "--user", "1"], ["similar", "--item", "1"]):
        assert main([words[0], str(copy), *words[1:]]) == 0
        assert "] :smile:" in capsys.readouterr().out


# Many users.


@pytest.mark.parametrize(
    ("suffix", "reading"), [("csv", pl.read_csv), ("parquet", pl.read_parquet)]
)
def test_many_users_are_written_to_a_file(capsys, trained, tmp_path, suffix, reading):
    users = [3, 17, 999, 0]
    (tmp_path / "users").write_text("\n".join(map(str, users)))
    out = tmp_path / f"lists.{suffix}"
    words = ["recommend", trained / "mf", "--users", tmp_path / "users", "-k", 4, "--out", out]
    assert printed(capsys, *words) == {"users": 4, "unknown": 1, "rows": 16, "out": str(out)}
    expected = TopItems(load_run(trained / "mf", seen=True)).recommend(users, 4)
    found = reading(out)
    assert found.drop("score").equals(expected.drop("score").cast(found.drop("score").schema))
    np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-6)
    assert main([*map(str, words)]) == 0
    told = capsys.readouterr()
    assert told.out == f"16 recommendations for 4 users in {out}\n"
    assert "1 of 4 users are not known" in told.err


# Similar items.


@pytest.mark.parametrize("name", [*RUNS, "online"])
def test_similar_items_are_those_of_the_run(capsys, trained, name):
    found = printed(capsys, "similar", trained / name, "--item", "5", "-k", 7)
    assert found["item"] == ("5" if name == "online" else 5)
    expected = TopItems(load_run(trained / name)).similar([5], 7)
    told = expected.select(pl.col("similar").alias("item"), "score").to_dicts()
    assert found["similar"] == told
    assert len(told) == 7


# Ranking.


@pytest.mark.parametrize(("name", "limit"), [("cel", "mean"), ("din", None)])
def test_evaluate_measures_the_ranking_of_the_test_part(capsys, trained, name, limit):
    found = printed(capsys, "evaluate", trained / name, "-k", 5)
    plain = printed(capsys, "evaluate", trained / name)
    ranking = found.pop("ranking")
    assert found == plain
    run = load_run(trained / name)
    whole = run.plan.prepared(read(trained / "log.csv"))
    split = Split.named(whole, None, 0)
    learned = split.train_and_valid()
    if limit == "mean":
        limit = pytest.approx(float(learned.target.mean()))
    assert (ranking["k"], ranking["relevant_from"]) == (5, limit)
    users = np.unique(split.test.user)
    seen = seen_in(learned)
    lists = TopK(run.model, learned.item_counts).recommend(users, 5, seen=seen).items
    expected = Ranking.by_slice(
        lists,
        users,
        split.test,
        learned.item_counts,
        relevant_from=ranking["relevant_from"],
        seen=seen,
    )
    for part, told in expected.items():
        assert ranking[part] == {n: getattr(told, n) for n in told.__slots__}
    assert ranking["all"]["users"] > 20
    assert 0 < ranking["all"]["recall"] < 1


def test_evaluate_takes_other_data_and_another_limit(capsys, trained, tmp_path):
    path = tmp_path / "more.csv"
    new = [item for item in range(50) if item not in set(log_of(trained).filter(user=3)["item"])]
    rows = {"user": [3, 3, 999], "item": [new[0], 888, 1], "target": [5.0, 5.0, 5.0]}
    pl.DataFrame(rows).write_csv(path)
    words = ["evaluate", trained / "cel", path, "-k", 50, "--relevant", 4.5]
    ranking = printed(capsys, *words)["ranking"]
    assert ranking["relevant_from"] == 4.5
    assert ranking["all"]["users"] == 1
    assert ranking["all"]["recall"] == 0.5  # one of the two is an item that nobody knows
    assert main([*map(str, words)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "relevant are test rows with a target from 4.5 on" in shown
    assert "recall 0.5000" in shown
    high = printed(capsys, *words[:-1], 6)["ranking"]["all"]
    assert (high["users"], high["ndcg"]) == (0, None)


# Mistakes.


def test_mistakes_are_one_line(capsys, trained, tmp_path):
    run = trained / "cel"
    (tmp_path / "users").write_text("1\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "strange").write_text("nothing\n")
    users = ["--users", tmp_path / "users"]
    old = tmp_path / "old"
    old.mkdir()
    for path in run.iterdir():
        if path.name != "seen.parquet":
            (old / path.name).write_bytes(path.read_bytes())
    for words, told in (
        (["recommend", tmp_path, "--user", 1], "not a run folder"),
        (["recommend", run], "give one of --user ID and --users FILE"),
        (["recommend", run, "--user", 1, *users], "give one of --user ID and --users FILE"),
        (["recommend", run, *users], "--users FILE and --out FILE go together"),
        (["recommend", run, "--user", 1, "--out", "x.csv"], "--users FILE and --out FILE go"),
        (["recommend", run, *users, "--out", "x.doc"], "x.doc: must end in .csv or .parquet"),
        (["recommend", run, "--user", 1, "-k", 0], "k must be positive, not 0"),
        (["recommend", run, "--user", 1, "--ties", "luck"], "ties must be one of"),
        (["recommend", run, "--user", 1, "--banned", tmp_path / "none"], "none: no such file"),
        (["recommend", run, "--user", 1, "--allowed", tmp_path / "empty"], "no ids in it"),
        (["recommend", run, "--user", 1, "--allowed", tmp_path / "strange"], "none of these"),
        (["recommend", old, "--user", 1], "train again, or include seen items (--with-seen)"),
        (["evaluate", old, trained / "log.csv", "-k", 3], "train again"),
        (["evaluate", run, "--relevant", 3], "--relevant is for -k"),
        (["similar", run, "--item", "strange"], "item 'strange' is not known"),
        (["similar", run, "--item", 1, "-k", -1], "k must be positive, not -1"),
    ):
        capsys.readouterr()
        assert main([*map(str, words)]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
    assert main(["recommend", str(old), "--user", "1", "--with-seen"]) == 0
    assert main(["evaluate", str(old), "-k", "3"]) == 0  # the log tells what was learned
