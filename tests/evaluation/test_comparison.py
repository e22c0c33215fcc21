import json
from dataclasses import replace

import pytest

from celrec import CelrecError, Plan, Planted, Split, fit
from celrec.config.presets import PRESETS
from celrec.evaluation import comparison as module
from celrec.evaluation.comparison import PENALTIES, Comparison
from celrec.offline.fitting import validate


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("default", "least-squares"):
        how = PRESETS["nmf"][name]
        short = replace(how.schedule, steps=6, validate_every=2)
        monkeypatch.setitem(PRESETS["nmf"], name, replace(how, schedule=short))


@pytest.fixture(scope="module")
def log():
    return Planted(rows=3000, users=40, items=50, dim=3, item_clusters=4).interactions()


PLAN = Plan(rank=3)


def test_a_cell_holds_what_training_and_measuring_by_hand_give(log):
    (standing,) = Comparison(log, PLAN, ["modulo"], ["5"], folds=[(2, 5)]).run()
    split = Split.fold(log, 2, of=5, seed=0)
    fitted = fit(split, replace(PLAN, embedding="modulo", compression="5"))
    errors = fitted.model.predict(split.test).numpy() - split.test.target
    assert standing.mean == pytest.approx(float((errors**2).mean()), rel=1e-5)
    assert (standing.metric, standing.folds, standing.error) == ("mse", 1, None)
    assert (standing.rows, standing.table, standing.index) == (5, 60, 0)
    assert (standing.serving, standing.training, standing.overrun) == (60, 60, 1)
    assert standing.ticks == "✓✓✓"
    assert standing.relative is None
    assert standing.penalty is None


def test_sizes_are_for_those_that_are_compressed(log):
    standings = Comparison(log, PLAN, ["full", "modulo", "int8"], ["5", "2"]).run()
    sizes = [(one.embedding, one.compression) for one in standings]
    assert sizes == [("full", "100%"), ("modulo", "5"), ("modulo", "2"), ("int8", "100%")]
    assert standings[0].relative == 1
    assert standings[1].relative == standings[1].seconds / standings[0].seconds


def test_levels_are_for_cel_only(log):
    comparison = Comparison(log, replace(PLAN, levels=2), ["full", "modulo", "cel"], ["6"])
    assert [plan.levels for plan in comparison.plans] == [1, 1, 2]
    assert [row.rows for row in comparison.run()] == [51, 6, 6]


def test_folds_are_averaged_and_their_spread_is_told(log):
    folds = [(1, 3), (2, 3), (3, 3)]
    (together,) = Comparison(log, PLAN, ["modulo"], ["4"], folds=folds).run()
    each = [Comparison(log, PLAN, ["modulo"], ["4"], folds=[fold]).run()[0] for fold in folds]
    means = [one.mean for one in each]
    middle = sum(means) / 3
    assert together.mean == pytest.approx(middle)
    spread = (sum((mean - middle) ** 2 for mean in means) / 2) ** 0.5
    assert together.error == pytest.approx(spread / 3**0.5)
    assert together.folds == 3


def test_every_method_is_tuned_by_the_same_trials_on_validation_data(log, tmp_path):
    path = tmp_path / "cells.jsonl"
    standings = Comparison(
        log, PLAN, ["modulo", "cel"], ["20"], penalties=PENALTIES, path=path
    ).run()
    split = Split.random(log, seed=0)
    for standing, line in zip(standings, path.read_text().splitlines(), strict=True):
        found = json.loads(line)["found"]
        assert [float(penalty) for penalty in found["trials"]] == list(PENALTIES)
        best = min(found["trials"], key=found["trials"].get)
        assert standing.penalty == float(best)
        plan = replace(PLAN, embedding=standing.embedding, compression="20", penalty=float(best))
        assert validate(split, plan) == pytest.approx(found["trials"][best], rel=1e-6)
        fitted = fit(split, plan)
        assert fitted.valid_loss == pytest.approx(found["trials"][best], rel=1e-6)


def test_what_is_finished_is_not_trained_again(log, tmp_path, monkeypatch):
    path = tmp_path / "cells.jsonl"
    Comparison(log, PLAN, ["modulo"], ["5"], path=path).run()
    trained = []
    whole = module.train_and_measure

    def counted(split, plan, watch):
        trained.append((plan.embedding, plan.compression))
        return whole(split, plan, watch)

    monkeypatch.setattr(module, "train_and_measure", counted)
    again = Comparison(log, PLAN, ["modulo", "full"], ["5", "3"], path=path)
    assert [one.compression for one in again.standings()] == ["5"]
    assert len(again.run()) == 3
    assert trained == [("modulo", "3"), ("full", "100%")]
    Comparison(log, replace(PLAN, seed=1), ["modulo"], ["5"], path=path).run()
    assert trained[2:] == [("modulo", "5")]
    assert len(path.read_text().splitlines()) == 4


def test_interrupted_it_keeps_what_is_finished(log, tmp_path, monkeypatch):
    path = tmp_path / "cells.jsonl"
    whole = module.train_and_measure

    def hit(split, plan, watch):
        if plan.compression == "3":
            raise KeyboardInterrupt
        return whole(split, plan, watch)

    monkeypatch.setattr(module, "train_and_measure", hit)
    with pytest.raises(KeyboardInterrupt):
        Comparison(log, PLAN, ["modulo"], ["5", "3"], path=path).run()
    assert len(path.read_text().splitlines()) == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["nothing\n", '{"cell": 1}\n', '{"found": {}}\n', "[1]\n"])
def test_a_file_of_something_else_is_not_touched(log, tmp_path, text):
    path = tmp_path / "cells.jsonl"
    path.write_text(text)
    with pytest.raises(CelrecError, match=r"cells\.jsonl, line 1: not a cell"):
        Comparison(log, PLAN, ["modulo"], ["5"], path=path)
    assert path.read_text() == text


def test_a_folder_and_bytes_that_are_no_text_are_told(log, tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "bytes"):
        with pytest.raises(CelrecError, match="not a file of cells that can be read"):
            Comparison(log, PLAN, ["modulo"], ["5"], path=path)


def test_unknown_methods_and_sizes_are_told_before_anything_is_trained(log):
    with pytest.raises(CelrecError, match="embedding must be one of"):
        Comparison(log, PLAN, ["modulo", "magic"], ["5"])
    with pytest.raises(CelrecError, match="compression"):
        Comparison(log, PLAN, ["modulo"], ["few"])


def test_cel_with_no_more_bytes_is_told_beside_each_rival(log):
    standings = Comparison(log, PLAN, ["cel", "modulo", "full"], ["4", "2"]).run()
    ours = {one.compression: one for one in standings if one.embedding == "cel"}
    for one in standings:
        fitting = [mine.mean for mine in ours.values() if mine.serving <= one.serving]
        wanted = None if one.embedding == "cel" or not fitting else min(fitting)
        assert one.clustered_instead == wanted
    full = next(one for one in standings if one.embedding == "full")
    assert full.clustered_instead is not None


def test_conversions_are_told_by_the_area_under_the_curve(log, monkeypatch):
    how = PRESETS["deepfm"]["scratch"]
    short = replace(how, schedule=replace(how.schedule, steps=2, validate_every=1))
    monkeypatch.setitem(PRESETS["deepfm"], "scratch", short)
    plan = Plan(model="deepfm", loss="cross-entropy", positive=float(log.target.mean()), rank=4)
    first, second = Comparison(log, plan, ["modulo", "robe"], ["5"]).run()
    assert first.metric == second.metric == "auc"
    assert 0 < first.mean < 1
    assert first.better(first.mean - 0.1)
    assert not first.better(first.mean + 0.1)


def test_ticks_are_those_of_what_was_trained_not_of_what_is_left(log):
    tree, leaves = Comparison(log, PLAN, ["etree", "jnkm-leaves"], ["4"]).run()
    assert tree.ticks == leaves.ticks == "✗✗✗"
    assert tree.training > tree.serving


def test_both_sides_are_counted_where_both_are_compressed(log):
    (items,) = Comparison(log, PLAN, ["modulo"], ["5"]).run()
    (both,) = Comparison(log, replace(PLAN, side="both"), ["modulo"], ["5"]).run()
    assert (both.table, both.rows) == (2 * items.table, 2 * items.rows)
