import numpy as np
import polars as pl
import pytest
import torch

from celrec import Plan, Planted, Split, fit
from celrec.errors import CelrecError
from celrec.online.eviction import IdleTime
from celrec.runs.online_learner import OnlineLearner
from celrec.runs.online_run import OnlineRun
from celrec.runs.run_folder import load_run

PLAN = Plan(
    embedding="cel-lite",
    compression="5",
    model="mf",
    rank=3,
    side="both",
    loss="cross-entropy",
    negatives=3,
)


@pytest.fixture(scope="module")
def events():
    rows = Planted(400, 30, 25, dim=2, item_clusters=4).interactions().to_frame()
    return rows.select("user", "item", pl.col("target").clip(0.5).cast(pl.Float32))


def batches(events, size=50):
    return [events[start : start + size] for start in range(0, len(events), size)]


def test_items_that_a_user_has_not_seen_are_learned_as_0(events):
    learner = OnlineLearner.start(PLAN)
    seen = {}
    for batch in batches(events):
        for user, item in batch.select("user", "item").iter_rows():
            seen.setdefault(user, set()).add(item)
        told = {}

        def step(given, told=told, before=learner.trainer.step, **how):
            told["batch"] = given
            return before(given, **how)

        learner.trainer.step, kept = step, learner.trainer.step
        learned, unfit = learner.learn(batch)
        learner.trainer.step = kept
        users, items = (learner.tables[name].ids.ids for name in ("users", "items"))
        given = told["batch"]
        assert unfit == []
        assert given.target.tolist() == [1.0] * 50 + [0.0] * 150
        assert learned.targets.tolist() == given.target.tolist()
        assert users[given.user.numpy()][:50].to_list() == batch["user"].to_list()
        assert torch.equal(given.user[50:], given.user[:50].repeat(3))
        known = len(items)  # by now
        assert int(given.item.max()) < known
        for user, item in zip(given.user[50:].tolist(), given.item[50:].tolist(), strict=True):
            mine = seen[users[user]]
            assert items[item] not in mine or len(mine) > known / 2
    assert learner.events == 400
    assert learner.tables["users"].counts.sum() == 400
    assert learner.tables["items"].sums.tolist() == learner.tables["items"].counts.tolist()


def test_what_is_drawn_depends_on_the_seed_and_the_events_alone(events):
    def learned(seed):
        learner = OnlineLearner.start(Plan(**{**options(PLAN), "seed": seed}))
        return [learner.learn(batch)[0].predictions.tolist() for batch in batches(events)]

    assert learned(1) == learned(1) != learned(2)


def options(plan):
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}


def test_only_conversions_count_where_there_is_a_threshold(events):
    plan = Plan(**{**options(PLAN), "positive": 3.0})
    learner = OnlineLearner.start(plan)
    for batch in batches(events):
        learner.learn(batch)
    assert learner.events == int((events["target"] >= 3).sum())
    learner.learn(events.filter(pl.col("target") < 3))
    assert learner.events == int((events["target"] >= 3).sum())


def test_silence_is_counted_in_events_that_happened(events, monkeypatch):
    monkeypatch.setattr("celrec.online.eviction.SEARCH_EVERY", 100)
    learner = OnlineLearner.start(PLAN, evict_after=IdleTime.parse("120"))
    for batch in batches(events):
        learner.learn(batch)
    known = set(learner.tables["users"].ids.ids)
    assert set(events["user"][-120:]) <= known
    # It looked last when 100 events or more had come since the look before.
    assert known <= set(events["user"][-320:])
    assert learner.dropped["items"] > 0 or learner.dropped["users"] > 0


def test_passes_over_a_log_can_go_on_as_a_stream(events):
    plan = Plan(embedding="cel-lite", compression="5", model="mf", rank=3, side="both")
    log = Planted(400, 30, 25, dim=2, item_clusters=4).interactions()
    fitted = fit(Split.random(log, test=0), plan)
    learner = OnlineLearner.after(fitted, plan, log, seen=log)
    assert learner.events == fitted.trainer.events == 400 * fitted.steps
    assert learner.tables["users"].ids.ids.to_list() == log.user_ids.ids.to_list()
    assert learner.tables["items"].counts.tolist() == log.item_counts.tolist()
    means = learner.run({}, {}).items["mean_target"]
    for item in range(log.num_items):
        mine = log.target[log.item == item].astype(np.float64)
        assert means[item] == pytest.approx(mine.mean(), rel=1e-6)
    sizes = [len(log.user_ids), len(log.item_ids)]
    newer = events.head(3).with_columns(user=pl.Series([900, 901, 900]), item=pl.Series([7, 8, 99]))
    learner.learn(newer)
    assert [len(log.user_ids), len(log.item_ids)] == sizes  # the log's own maps stay
    assert learner.tables["users"].ids.ids.to_list()[-2:] == [900, 901]
    offline = Plan(model="mf", rank=3, compression="4")
    with pytest.raises(CelrecError, match="train with embedding 'cel-lite'"):
        OnlineLearner.after(fit(Split.random(log, test=0), offline), offline, log, seen=log)


def test_questions_are_answered_as_by_a_checkpoint(events, tmp_path):
    learner = OnlineLearner.start(PLAN)
    for batch in batches(events):
        learner.learn(batch)
    run = learner.run({"reading": {}}, {"events": 400})
    OnlineRun.keep(tmp_path / "run", learner, {"reading": {}})
    loaded = load_run(tmp_path / "run", seen=True)
    assert run.users.equals(loaded.users)
    assert run.items.equals(loaded.items)
    assert (run.plan, run.source) == (loaded.plan, loaded.source)
    assert [part.tolist() for part in run.seen.events()] == [
        part.tolist() for part in loaded.seen.events()
    ]
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, loaded.model.state_dict()[name])


def test_a_run_is_replaced_whole_unless_somebody_works_on_it(events, tmp_path):
    learner, place = OnlineLearner.start(PLAN), tmp_path / "run"
    learner.learn(events[:100])
    with OnlineRun.start(place, PLAN) as run:
        run.checkpoint()
        with pytest.raises(CelrecError, match="another process works on this run"):
            OnlineRun.keep(place, learner, {})
        assert load_run(place).result["events"] == 0
    OnlineRun.keep(place, learner, {}, offset={"row": 7}, notes={"a": 1})
    with OnlineRun.resume(place) as run:
        assert (run.events, run.offset, run.notes) == (100, {"row": 7}, {"a": 1})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(CelrecError, match="is there and no run folder"):
        OnlineRun.keep(tmp_path / "mine", learner, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "run"]


def test_a_target_of_0_tells_of_what_did_not_happen(events):
    learner = OnlineLearner.start(PLAN)
    mixed = events.head(50).with_columns(target=pl.Series([1.0, 0.0] * 25, dtype=pl.Float32))
    learned, unfit = learner.learn(mixed)
    assert (learner.events, unfit) == (25, [])
    assert learned.targets.tolist() == [1.0] * 25 + [0.0] * 75
    assert learner.tables["items"].ids.ids.to_list() == (
        mixed.filter(pl.col("target") == 1)["item"].unique(maintain_order=True).to_list()
    )
