import json
import os
import resource
import shutil
import threading

import numpy as np
import polars as pl
import pytest
import torch

from celrec import Planted
from celrec.config.building import make_model
from celrec.config.plan import Plan
from celrec.data.columns import further
from celrec.embeddings.registry import METHODS
from celrec.errors import CelrecError
from celrec.runs.checkpoint_folder import CheckpointFolder
from celrec.runs.online_run import OnlineRun
from celrec.runs.run_folder import load_run, save_run, trained_run
from celrec.runtime.state_file import load_state
from celrec.streams.events import Events, Rejected

OF_ROWS = [name for name, method in METHODS.items() if not method.budget_only]

ROWS, BATCH = 360, 60
KINDS = {
    "soft mf": Plan(embedding="cel-lite", compression="5", model="mf", rank=3),
    "soft nmf": Plan(embedding="cel-lite", compression="5", model="nmf", rank=3, side="both"),
    "soft deepfm": Plan(embedding="cel-lite", compression="5", model="deepfm", rank=4, side="both"),
    "hard mf": Plan(embedding="cel-lite", compression="9", model="mf", rank=3, preset="hard"),
    "hard deepfm": Plan(
        embedding="cel-lite",
        compression="9",
        model="deepfm",
        rank=4,
        preset="hard",
        side="both",
        loss="cross-entropy",
        positive=3.0,
    ),
    "literal din": Plan(
        embedding="cel-lite", compression="9", model="din", rank=4, preset="paper", side="both"
    ),
    "soft personal": Plan(
        embedding="cel-lite", compression="5", model="mf", rank=3, side="both", personalise="4"
    ),
    "hard personal": Plan(
        embedding="cel-lite",
        compression="9",
        model="deepfm",
        rank=4,
        preset="hard",
        personalise="4",
    ),
    "modulo": Plan(embedding="modulo", compression="7", model="mf", rank=3, preset="online"),
    "full": Plan(embedding="full", compression="1", model="deepfm", rank=4, preset="online"),
    "robe": Plan(embedding="robe", compression="7", model="mf", rank=4, preset="online"),
}
MF = KINDS["soft mf"]


@pytest.fixture(scope="module")
def log():
    """Users are numbers, items texts, shops a further column in which some are missing."""
    planted = Planted(rows=ROWS, users=40, items=30, dim=2, item_clusters=4)
    rows = planted.interactions().to_frame()
    shop = [None if n % 7 == 0 else f"shop {n * 5 % 11}" for n in range(ROWS)]
    return rows.select(
        "user",
        pl.format("item {}", "item").alias("item"),
        pl.col("target").cast(pl.Float32),
        pl.Series(further("shop"), shop),
    )


def batches(log, size=BATCH):
    """With one malformed event in each."""
    return [
        Events(
            log[start : start + size],
            {"row": start + size, "late": start // size},
            (Rejected(f"line {start}", "raw", "why"),),
        )
        for start in range(0, len(log), size)
    ]


def columns_of(plan):
    return ["shop"] if plan.network else []


def rejected_lines(folder):
    return [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]


def everything(run):
    """All that a run is, in one flat dict."""
    found = flat(
        {"model": dict(run.model.state_dict()), "trainer": run.learner.trainer.state_dict()}
    )
    for name, table in run.learner.tables.items():
        ids = table.ids.ids
        found[name] = (ids.dtype, ids.to_list(), table.counts.tolist(), table.sums.tolist())
    sizes = {name: table.num_embeddings for name, table in run.model.whole_tables.items()}
    return {**found, "sizes": sizes, "offset": run.offset, "rejected": run.rejected}


def contents(folder):
    """What the files of a checkpoint hold; safetensors writes its metadata in any order."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files["checkpoint.json"] = json.loads(files["checkpoint.json"])["about"]
    return {**files, "training.safetensors": flat(load_state(folder / "training.safetensors"))}


def flat(state):
    """Nested dicts in one, with tensors as bytes."""
    found = {}

    def put(place, value):
        if isinstance(value, dict):
            for key, inner in value.items():
                put((*place, key), inner)
        elif isinstance(value, torch.Tensor):
            found[place] = (str(value.dtype), value.shape, value.numpy().tobytes())
        else:
            found[place] = value

    put((), state)
    return found


# Going on.


@pytest.mark.parametrize("kind", KINDS)
def test_stopped_after_every_batch_a_run_comes_to_the_same_state(log, tmp_path, kind):
    plan = KINDS[kind]
    whole = OnlineRun.start(tmp_path / "whole", plan, columns_of(plan))
    parts = OnlineRun.start(tmp_path / "parts", plan, columns_of(plan))
    for number, events in enumerate(batches(log)):
        one, two = whole.learn(events), parts.learn(events)
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
        assert parts.checkpoint({"number": number})
        parts.close()
        parts = OnlineRun.resume(tmp_path / "parts")
        assert everything(parts) == everything(whole)
        assert parts.notes == {"number": number}
    whole.checkpoint({"number": number})
    whole.close()
    parts.close()
    one, two = (CheckpointFolder(tmp_path / name).whole()[0] for name in ("whole", "parts"))
    assert one.name == two.name == f"{ROWS:012d}"
    assert contents(one) == contents(two)
    files = [(tmp_path / name / "rejected.jsonl").read_text() for name in ("whole", "parts")]
    assert files[0] == files[1]
    assert [json.loads(line)["place"] for line in files[0].splitlines()] == [
        f"line {start}" for start in range(0, ROWS, BATCH)
    ]


def test_what_came_after_the_checkpoint_comes_again(log, tmp_path):
    first, second, third, *_ = batches(log)
    with OnlineRun.start(tmp_path / "run", MF) as run:
        run.learn(first)
        run.checkpoint()
        kept = everything(run)
        run.learn(second)
    assert len(rejected_lines(tmp_path / "run")) == 2
    with OnlineRun.resume(tmp_path / "run") as run:
        assert everything(run) == kept
        assert len(rejected_lines(tmp_path / "run")) == 1
        run.learn(second)
        run.learn(third)
        run.checkpoint()
    places = [line["place"] for line in rejected_lines(tmp_path / "run")]
    assert places == ["line 0", "line 60", "line 120"]


def test_a_run_that_has_no_checkpoint_starts_anew(log, tmp_path):
    for _ in range(2):
        with OnlineRun.start(tmp_path / "run", MF) as run:
            run.learn(batches(log)[0])
    assert len(rejected_lines(tmp_path / "run")) == 1
    with pytest.raises(CelrecError, match="holds no online run to go on with; start one"):
        OnlineRun.resume(tmp_path / "run")
    with pytest.raises(CelrecError, match="holds no online run"):
        OnlineRun.resume(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_predictions_are_those_from_before_and_counts_too(log, tmp_path):
    with OnlineRun.start(tmp_path / "run", MF) as run:
        seen = {"user": {}, "item": {}}
        for events in batches(log):
            learned = run.learn(events)
            frame = events.frame
            for role, told in (("user", learned.user_events), ("item", learned.item_events)):
                ids = frame[role].to_list()
                assert told.tolist() == [seen[role].get(one, 0) for one in ids]
                for one in ids:
                    seen[role][one] = seen[role].get(one, 0) + 1
            assert learned.targets.tolist() == frame["target"].to_list()
        # What it would predict now is what it does predict, before it learns.
        frame = log[:40]
        run.checkpoint()
        known = load_run(tmp_path / "run")
        numbers = known.known.user_ids.encode(frame["user"])
        assert known.users["id"].to_list() == run.learner.tables["users"].ids.ids.to_list()
        again = known.known.__class__(
            numbers,
            known.known.item_ids.encode(frame["item"]),
            frame["target"].to_numpy(),
            None,
            known.known.user_ids,
            known.known.item_ids,
        )
        expected = known.model.predict(again)
        found = run.learn(Events(frame, {"row": 1})).predictions
        assert torch.allclose(torch.from_numpy(found), expected, atol=1e-5)


def test_ids_of_all_kinds_keep_their_numbers(tmp_path):
    kinds = [
        pl.Series([5, 7, 5]),
        pl.Series(["7", "9"]),
        pl.Series([2**62, -1]),
        pl.Series(["x", "007", "7"]),
        pl.Series([9, 10]),
        pl.Series([str(2**70)]),
    ]
    run = OnlineRun.start(tmp_path / "run", MF)
    numbered = {}
    for number, users in enumerate(kinds):
        frame = pl.DataFrame({"user": users, "item": users, "target": [1.0] * len(users)})
        run.learn(Events(frame, {"row": number}))
        run.checkpoint()
        before = run.learner.tables["users"].ids.ids
        run.close()
        run = OnlineRun.resume(tmp_path / "run")
        known = run.learner.tables["users"].ids
        assert known.ids.dtype == before.dtype
        assert known.ids.to_list() == before.to_list()
        for one in users:
            place = int(known.encode([one])[0])
            assert numbered.setdefault(str(one), place) == place
    run.close()
    assert len(numbered) == len(set(numbered.values())) == 9


def test_a_batch_without_events_moves_the_offset_only(log, tmp_path):
    first, *_ = batches(log)
    with OnlineRun.start(tmp_path / "run", KINDS["soft deepfm"], ["shop"]) as run:
        learned = run.learn(Events(log[:0], {"row": 0}))
        assert [len(part) for part in learned] == [0] * 4
        assert run.checkpoint()
        run.learn(first)
        run.checkpoint()
        before = everything(run)
        run.learn(Events(log[:0], {"row": 999}))
        assert everything(run) == {**before, "offset": {"row": 999}}
        assert run.checkpoint()
        assert not run.checkpoint()
    names = [path.name for path in CheckpointFolder(tmp_path / "run").whole()]
    assert names == ["000000000060-000001", "000000000060"]
    with OnlineRun.resume(tmp_path / "run") as run:
        assert run.offset == {"row": 999}


def test_a_column_of_which_all_is_missing_can_be_kept(log, tmp_path):
    frame = log[:20].with_columns(pl.lit(None, pl.String).alias(further("shop")))
    with OnlineRun.start(tmp_path / "run", KINDS["hard deepfm"], ["shop"]) as run:
        run.learn(Events(frame, {"row": 20}))
        run.checkpoint()
    with OnlineRun.resume(tmp_path / "run") as run:
        assert len(run.learner.tables["shop"].ids) == 0
        run.learn(batches(log)[1])
        assert len(run.learner.tables["shop"].ids) > 5


# Targets.


def test_conversions_are_told_from_the_threshold_on(log, tmp_path):
    plan = Plan(embedding="cel-lite", compression="4", model="mf", loss="cross-entropy", positive=2)
    with OnlineRun.start(tmp_path / "run", plan) as run:
        learned = run.learn(Events(log, {"row": 1}))
    assert learned.targets.tolist() == [float(target >= 2) for target in log["target"]]
    assert ((learned.predictions > 0) & (learned.predictions < 1)).all()


def test_targets_that_do_not_fit_are_set_aside(tmp_path):
    plan = Plan(embedding="cel-lite", compression="4", model="mf", loss="cross-entropy")
    frame = pl.DataFrame({"user": [1, 2, 3], "item": [1, 2, 3], "target": [0.0, 3.0, 1.0]})
    with OnlineRun.start(tmp_path / "run", plan) as run:
        with pytest.raises(CelrecError, match=r"neither 0 nor 1 needs a `positive` one .* as in 3"):
            run.learn(Events(frame[1:2], {"row": 1}))
        learned = run.learn(Events(frame, {"row": 3}))
        assert learned.targets.tolist() == [0.0, 1.0]
        run.learn(Events(frame[1:2], {"row": 4}))
        assert (run.events, run.rejected) == (2, 2)
        run.checkpoint()
        assert run.learner.tables["users"].ids.ids.to_list() == [1, 3]
    lines = rejected_lines(tmp_path / "run")
    assert lines[0]["place"] == "row 2 of the batch after 0 events"
    assert json.loads(lines[0]["raw"]) == {"user": 2, "item": 2, "target": 3.0}


def test_predictions_that_are_not_finite_stop_the_run(tmp_path):
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 2], "target": [1.0, 3e38]})
    with OnlineRun.start(tmp_path / "run", MF) as run:
        run.learn(Events(frame[:1], {"row": 1}))
        run.learn(Events(frame, {"row": 2}))
        with pytest.raises(CelrecError, match="predictions are not finite any more"):
            run.learn(Events(frame, {"row": 3}))


# The folder.


def test_a_run_can_be_loaded_while_it_goes_on(log, tmp_path):
    for kind in ("soft deepfm", "hard deepfm", "literal din", "hard personal"):
        folder = tmp_path / kind
        with OnlineRun.start(folder, KINDS[kind], ["shop"], source={"reading": {}}) as run:
            for events in batches(log):
                run.learn(events)
            run.checkpoint()
            loaded = load_run(folder)
            assert loaded.result == {"events": ROWS, "rejected": 6, "late": 5}
            assert loaded.source == {"reading": {}}
            items = log.group_by("item", maintain_order=True).agg(n=pl.len())
            assert loaded.items["id"].to_list() == items["item"].to_list()
            assert loaded.items["interactions"].to_list() == items["n"].to_list()
            assert loaded.items["cluster"].n_unique() > 1
            assert ("private" in loaded.items.columns) == ("personal" in kind)
            assert "cluster" in loaded.columns["shop"].columns
            if loaded.model.history_length:
                known = loaded.known
                ann = known.user_ids.encode(log["user"][:1])
                events = known.__class__(
                    *(ann, ann, np.zeros(1, np.float32), None, known.user_ids, known.item_ids),
                    columns={
                        "shop": known.columns["shop"].__class__(ann, known.columns["shop"].ids)
                    },
                )
                history = loaded.model.batch(events, slice(0, 1), own=False).history[0]
                past = log.filter(pl.col("user") == log["user"][0])["item"].to_list()[-20:]
                assert known.item_ids.decode(history[history >= 0]).to_list() == past


def test_a_reader_is_not_disturbed_by_checkpoints_that_come_and_go(log, tmp_path):
    with OnlineRun.start(tmp_path / "run", MF) as run:
        for row in range(10):
            run.learn(Events(log[row : row + 1], {"row": row}))
            run.checkpoint()
            seen, failed = [], []

            def read(seen=seen, failed=failed):
                try:
                    seen.append(load_run(tmp_path / "run").result["events"])
                except BaseException as error:
                    failed.append(error)

            reader = threading.Thread(target=read)
            reader.start()
            for again in range(3):
                run.learn(Events(log[:0], {"row": row, "again": again}))
                run.checkpoint()
            reader.join()
            assert (seen, failed) == ([row + 1], [])


def test_only_the_latest_two_are_kept_and_half_written_ones_removed(log, tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    with OnlineRun.start(tmp_path / "run", MF) as run:
        for events in batches(log)[:4]:
            run.learn(events)
            run.checkpoint()
    assert sorted(os.listdir(folder)) == ["000000000180", "000000000240"]
    shutil.copytree(folder / "000000000240", folder / ".000000000300.x")
    with OnlineRun.resume(tmp_path / "run") as run:
        assert run.events == 240
    assert sorted(os.listdir(folder)) == ["000000000180", "000000000240"]


def test_one_process_at_a_time(tmp_path, log):
    with OnlineRun.start(tmp_path / "run", MF) as run:
        run.learn(batches(log)[0])
        run.checkpoint()
        for again in (OnlineRun.resume, lambda folder: OnlineRun.start(folder, MF)):
            with pytest.raises(CelrecError, match="another process works on this run"):
                again(tmp_path / "run")
    OnlineRun.resume(tmp_path / "run").close()
    with pytest.raises(CelrecError, match="holds a run already; resume it"):
        OnlineRun.start(tmp_path / "run", MF)
    OnlineRun.resume(tmp_path / "run").close()  # the lock was given back


def test_nothing_else_is_taken_for_a_run(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("")
    with pytest.raises(CelrecError, match="is there and no online run"):
        OnlineRun.start(tmp_path / "thesis", MF)
    (tmp_path / "file").write_text("")
    with pytest.raises(CelrecError, match="cannot be the folder of a run"):
        OnlineRun.start(tmp_path / "file", MF)
    planted = Planted(rows=100, users=9, items=9, item_clusters=3).interactions()
    plan = Plan(compression="3", rank=2)
    save_run(
        tmp_path / "offline", trained_run(planted, make_model(planted, plan), plan, {}, {}, {})
    )
    with pytest.raises(CelrecError, match="is there and no online run"):
        OnlineRun.start(tmp_path / "offline", MF)


# Damage.

FILES = (
    "checkpoint.json",
    "config.json",
    "result.json",
    "model.safetensors",
    "training.safetensors",
    "users.parquet",
    "items.parquet",
)


@pytest.fixture(scope="module")
def kept(log, tmp_path_factory):
    """A run with two checkpoints."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    with OnlineRun.start(folder, MF) as run:
        for events in batches(log)[:2]:
            run.learn(events)
            run.checkpoint()
    return folder


def damage(path, kind):
    content = path.read_bytes()
    middle = len(content) // 2
    if kind == "gone":
        path.unlink()
    else:
        flipped = content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]
        path.write_bytes({"cut": content[:middle], "empty": b"", "flipped": flipped}[kind])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["cut", "empty", "flipped", "gone"])
def test_an_older_checkpoint_serves_when_the_latest_is_damaged(kept, log, tmp_path, name, kind):
    folder = tmp_path / "run"
    shutil.copytree(kept, folder)
    damage(folder / "checkpoints" / "000000000120" / name, kind)
    assert load_run(folder).result["events"] == 60
    with OnlineRun.resume(folder) as run:
        assert run.events == 60
        [told] = run.damaged
        assert str(folder / "checkpoints" / "000000000120" / name) in str(told)
        assert "\n" not in str(told)
        run.learn(batches(log)[1])
        run.checkpoint()
    names = sorted(os.listdir(folder / "checkpoints"))
    assert names == ["000000000060", "000000000120", "damaged-000000000120"]
    assert contents(folder / "checkpoints" / "000000000120") == contents(
        kept / "checkpoints" / "000000000120"
    )
    assert load_run(folder).result["events"] == 120


def test_all_checkpoints_damaged_is_told(kept, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(kept, folder)
    for name in ("000000000120", "000000000060"):
        damage(folder / "checkpoints" / name / "users.parquet", "cut")
    told = r"000000000120/users.parquet: damaged, the checksum differs; no earlier checkpoint"
    for read in (OnlineRun.resume, load_run):
        with pytest.raises(CelrecError, match=told):
            read(folder)


def test_another_format_is_not_taken_for_damage(kept, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(kept, folder)
    monkeypatch.setattr("celrec.runs.checkpoint_folder.FORMAT", 2)
    with pytest.raises(CelrecError, match="written in format 1, expected 2"):
        OnlineRun.resume(folder)
    assert sorted(os.listdir(folder / "checkpoints")) == ["000000000060", "000000000120"]


@pytest.mark.parametrize("limit", [0, 300, 1000])
def test_a_full_disk_leaves_the_earlier_checkpoints(log, tmp_path, limit):
    first, second, *_ = batches(log)
    with OnlineRun.start(tmp_path / "run", MF) as run:
        run.learn(first)
        run.checkpoint()
        run.learn(Events(second.frame, second.offset))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(CelrecError, match="cannot write a checkpoint") as error:
                run.checkpoint()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "\n" not in str(error.value)
        assert os.listdir(tmp_path / "run" / "checkpoints") == ["000000000060"]
        assert run.checkpoint()  # there is room again
    with OnlineRun.resume(tmp_path / "run") as run:
        assert run.events == 120


def test_a_rejected_file_that_cannot_be_written_is_told(log, tmp_path):
    with OnlineRun.start(tmp_path / "run", MF) as run:
        (tmp_path / "run" / "rejected.jsonl").mkdir()
        with pytest.raises(CelrecError, match=r"rejected.jsonl: cannot write rejected events"):
            run.learn(batches(log)[0])


# Plans.


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (Plan(), "is learned from a log, not from a stream"),
        (Plan(embedding="cel-lite", compression="1%"), "a share of ids that are not known yet"),
        (Plan(embedding="qr", preset="online", compression="9"), "has to know all ids beforehand"),
    ],
)
def test_plans_that_are_not_for_streams_are_told(tmp_path, plan, told):
    with pytest.raises(CelrecError, match=told):
        OnlineRun.start(tmp_path / "run", plan)
    assert not (tmp_path / "run").exists()


def test_a_share_of_expected_ids_is_a_number_of_rows(tmp_path):
    plan = Plan(embedding="cel-lite", compression="1%", model="mf", preset="hard")
    with pytest.raises(CelrecError, match="expected_ids must be positive, not 0"):
        OnlineRun.start(tmp_path / "run", plan, expected_ids=0)
    with OnlineRun.start(tmp_path / "run", plan, expected_ids=1234) as run:
        assert run.plan.compression == "12"
        assert run.model.items.max_clusters == 12


def test_columns_and_targets_that_do_not_suit_are_told(log, tmp_path):
    with pytest.raises(CelrecError, match="looks at users and items only"):
        OnlineRun.start(tmp_path / "run", MF, ["shop"])
    with (
        OnlineRun.start(tmp_path / "run", KINDS["soft deepfm"], ["shop"]) as run,
        pytest.raises(CelrecError, match="events have no column 'ids:shop'"),
    ):
        run.learn(Events(log.drop(further("shop")), {}))
    frame = log.with_columns(-pl.col("target").abs())
    with (
        OnlineRun.start(tmp_path / "negative", KINDS["soft nmf"]) as run,
        pytest.raises(CelrecError, match="model 'nmf' is for positive ones; take model 'mf'"),
    ):
        run.learn(Events(frame, {}))


@pytest.mark.parametrize("name", OF_ROWS)
def test_every_embedding_learns_from_a_stream_and_resumes_or_says_why_not(log, tmp_path, name):
    preset = "default" if name == "cel-lite" else "online"
    fixed = ("bh-ids", "hashgnn", "prehash", "prehash4", "qr", "tt", "cel", "cel-int8")
    if name in fixed or METHODS[name].tree:
        with pytest.raises(CelrecError, match=r"online|beforehand|bh-ids"):
            plan = Plan(embedding=name, compression="8", model="nmf", preset=preset)
            OnlineRun.start(tmp_path / "run", plan)
        return
    plan = Plan(embedding=name, compression="8", model="mf", preset=preset, rank=4)
    *first, last = batches(log)
    with OnlineRun.start(tmp_path / "run", plan) as run:
        for events in first:
            run.learn(events)
        run.checkpoint()
        predictions = run.learn(last).predictions
        expected = everything(run)
    with OnlineRun.resume(tmp_path / "run") as run:
        assert np.array_equal(run.learn(last).predictions, predictions)
        assert everything(run) == expected


def test_the_journal_has_a_place_beside_that_of_the_source(tmp_path):
    frame = pl.DataFrame({"user": ["a", "b"], "item": [1, 2], "target": [3.0, 4.0]})
    with OnlineRun.start(tmp_path / "run", MF) as run:
        run.learn(Events(frame, {"row": 2}))
        run.checkpoint()
        run.learn_journal(Events(frame, {"next": 2}))
        assert (run.offset, run.journal, run.events) == ({"row": 2}, 2, 4)
        assert run.checkpoint()
        run.learn(Events(frame, {"row": 4}))
        assert (run.offset, run.journal) == ({"row": 4}, 2)
        assert run.checkpoint()
        assert run.journalled() == [2, 2]
    with OnlineRun.resume(tmp_path / "run") as run:
        assert (run.offset, run.journal, run.events) == ({"row": 4}, 2, 6)


def test_a_run_that_only_has_a_journal_has_no_place_in_a_source(tmp_path):
    frame = pl.DataFrame({"user": ["a"], "item": [1], "target": [3.0]})
    with OnlineRun.start(tmp_path / "run", MF) as run:
        run.learn_journal(Events(frame, {"next": 1}))
        run.checkpoint()
    with OnlineRun.resume(tmp_path / "run") as run:
        assert (run.offset, run.journal) == (None, 1)
