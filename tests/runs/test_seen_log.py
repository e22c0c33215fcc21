"""What online runs keep of what users have seen."""

import json
import shutil
import zlib

import numpy as np
import polars as pl
import pytest
import torch

from celrec import CelrecError
from celrec.online import eviction as eviction
from celrec.online.eviction import IdleTime
from celrec.runs import checkpoint_folder, online_run, seen_log
from celrec.runs.checkpoint_folder import CheckpointFolder
from celrec.runs.online_run import OnlineRun
from celrec.runs.run_folder import load_run
from celrec.streams.events import Events
from tests.runs.test_online_run_forgetting import KINDS, columns_of, cut, drifting
from tests.runs.test_seen_file import pairs_of


def slow_seen(frame, run, latest=1000):
    """By original ids: what each user has seen, of those who were never dropped."""
    known = [set(run.learner.tables[name].ids.ids) for name in ("users", "items")]
    pairs = [pair for pair in frame.select("user", "item").iter_rows() if pair[0] in known[0]]
    kept = []
    for row, (user, item) in enumerate(pairs):
        later = sum(other == user for other, _ in pairs[row + 1 :])
        if later < latest and item in known[1]:
            kept.append((user, item))
    return kept


def originals(seen, run):
    users, items = seen.events()
    ids = (
        run.learner.tables["users"].ids.decode(users),
        run.learner.tables["items"].ids.decode(items),
    )
    return list(zip(*(part.to_list() for part in ids), strict=True))


@pytest.mark.parametrize("kind", ["soft", "hard deepfm", "soft din"])
def test_an_online_run_keeps_what_users_have_seen_however_often_it_stops(
    tmp_path, kind, monkeypatch
):
    monkeypatch.setattr(online_run, "LATEST_SEEN", 6)
    frame = drifting(200)
    run = OnlineRun.start(tmp_path / "run", KINDS[kind], columns_of(kind))
    for number, events in enumerate(cut(frame)):
        run.learn(events)
        if number % 4 == 3:
            run.checkpoint()
            run.close()
            run = OnlineRun.resume(tmp_path / "run")
    expected = slow_seen(frame, run, 6)
    assert originals(run.seen, run) == expected
    assert 50 < len(expected) < 200
    assert run.learner.nbytes["seen"] == run.seen.nbytes
    run.checkpoint()
    assert originals(load_run(tmp_path / "run", seen=True).seen, run) == expected
    run.close()


def test_who_is_dropped_has_seen_nothing_and_was_seen_by_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(eviction, "SEARCH_EVERY", 20)
    frame = drifting(280)
    one = OnlineRun.start(tmp_path / "one", KINDS["soft"], evict_after=IdleTime(60))
    two = OnlineRun.start(tmp_path / "two", KINDS["soft"], evict_after=IdleTime(60))
    for events in cut(frame, 20):
        one.learn(events)
        two.learn(events)
        two.checkpoint()
        two.close()
        two = OnlineRun.resume(tmp_path / "two")
        assert pairs_of(one.seen) == pairs_of(two.seen)
    assert one.learner.dropped["users"] > 20
    found = originals(one.seen, one)
    assert None not in {one for pair in found for one in pair}
    # Those who are left came once, for ids of this stream never come again.
    assert found == slow_seen(frame, one)
    assert 20 < len(found) < 150
    one.close()
    two.close()


# Checkpoints.


def meddled(folder, change):
    """Let the latest checkpoint have noted something else."""
    latest = max((folder / "checkpoints").iterdir())
    content = json.loads((latest / "checkpoint.json").read_text())
    del content["crc32"]
    change(content["about"])
    crc = checkpoint_folder.content_checksum(content)
    (latest / "checkpoint.json").write_text(json.dumps({**content, "crc32": crc}))


def test_a_checkpoint_of_an_earlier_version_begins_with_nothing_seen(tmp_path):
    folder = tmp_path / "run"
    with OnlineRun.start(folder, KINDS["soft"]) as run:
        run.learn(cut(drifting(30), 30)[0])
        run.checkpoint()
    meddled(folder, lambda about: about.pop("seen"))
    assert load_run(folder, seen=True).seen is None
    with OnlineRun.resume(folder) as run:
        assert (len(run.seen), run.damaged) == (0, ())
        run.learn(Events(drifting(10, start=30), {"row": 40}))
        run.checkpoint()
        assert len(run.seen) == len(load_run(folder, seen=True).seen) == 10


def sizes(folder):
    return {path.name: path.stat().st_size for path in (folder / "seen").iterdir()}


def test_a_checkpoint_only_adds_what_is_new(tmp_path):
    folder = tmp_path / "run"
    with OnlineRun.start(folder, KINDS["soft"]) as run:
        for number, events in enumerate(cut(drifting(200), 20), 1):
            run.learn(events)
            before = (folder / "seen/000001.bin").read_bytes() if number > 1 else b""
            run.checkpoint()
            assert sizes(folder) == {"000001.bin": 8 * 20 * number}
            assert (folder / "seen/000001.bin").read_bytes().startswith(before)


def test_files_stay_as_long_as_a_checkpoint_needs_them(tmp_path, monkeypatch):
    monkeypatch.setattr(eviction, "SEARCH_EVERY", 40)
    folder = tmp_path / "run"
    kept = []
    with OnlineRun.start(folder, KINDS["soft"], evict_after=IdleTime(50)) as run:
        for events in cut(drifting(400), 20):
            run.learn(events)
            run.checkpoint()
            kept = [*kept, pairs_of(run.seen)][-2:]
            noted = [about["seen"]["file"] for about in CheckpointFolder(folder).noted()]
            assert set(sizes(folder)) == set(noted)
    assert max(noted) > "000003.bin"
    for pairs in reversed(kept):
        assert pairs_of(load_run(folder, seen=True).seen) == pairs
        shutil.rmtree(max((folder / "checkpoints").iterdir()))


def test_what_came_after_a_checkpoint_is_cut_off(tmp_path):
    folder, frame = tmp_path / "run", drifting(90)
    with OnlineRun.start(folder, KINDS["soft"]) as run:
        for events in cut(frame, 30):
            run.learn(events)
            run.checkpoint()
    shutil.rmtree(max((folder / "checkpoints").iterdir()))
    assert len(load_run(folder, seen=True).seen) == 60
    with OnlineRun.resume(folder) as run:
        assert (len(run.seen), run.damaged) == (60, ())
        run.learn(Events(drifting(5, start=700), {"row": 1}))
        run.checkpoint()
        assert sizes(folder) == {"000001.bin": 8 * 65}
        assert originals(load_run(folder, seen=True).seen, run) == originals(run.seen, run)
        assert originals(run.seen, run)[60:] == list(
            drifting(5, start=700).select("user", "item").iter_rows()
        )


@pytest.mark.parametrize("damage", ["cut", "noise", "gone", "strangers"])
def test_without_what_was_seen_a_run_goes_on_and_says_so(tmp_path, damage):
    folder = tmp_path / "run"
    with OnlineRun.start(folder, KINDS["soft"]) as run:
        run.learn(cut(drifting(30), 30)[0])
        run.checkpoint()
    path = folder / "seen/000001.bin"
    data = path.read_bytes()
    strange = np.full(60, 99, "<i4").tobytes()
    content = {"cut": data[:-4], "noise": data[:-4] + b"abcd", "strangers": strange}
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[damage])
    if damage == "strangers":
        meddled(folder, lambda about: about["seen"].update(crc32=zlib.crc32(strange)))
    load_run(folder)
    with pytest.raises(CelrecError, match=r"000001\.bin") as told:
        load_run(folder, seen=True)
    assert "\n" not in str(told.value)
    with OnlineRun.resume(folder) as run:
        assert [str(error) for error in run.damaged] == [str(told.value)]
        assert (run.events, len(run.seen)) == (30, 0)
        run.learn(Events(drifting(10, start=30), {"row": 40}))
        run.checkpoint()
        assert len(load_run(folder, seen=True).seen) == 10
    with OnlineRun.resume(folder) as run:
        assert (len(run.seen), run.damaged) == (10, ())


def test_a_full_disk_is_told_and_nothing_is_lost_when_there_is_room_again(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with OnlineRun.start(folder, KINDS["soft"]) as run:
        run.learn(cut(drifting(30), 30)[0])
        run.checkpoint()
        run.learn(cut(drifting(30, start=30), 30)[0])

        def full(_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(seen_log.os, "fsync", full)
            with pytest.raises(CelrecError, match=r"cannot write a checkpoint \(No space left"):
                run.checkpoint()
        assert len(load_run(folder, seen=True).seen) == 30
        run.checkpoint()
        assert pairs_of(load_run(folder, seen=True).seen) == pairs_of(run.seen)
        assert len(run.seen) == 60


# What a network is told of users.


@pytest.mark.parametrize("kind", ["soft din", "hard deepfm"])
def test_at_present_a_user_has_seen_all_that_was_learned(tmp_path, kind):
    frame = drifting(150)
    with OnlineRun.start(tmp_path / "run", KINDS[kind], columns_of(kind)) as run:
        for events in cut(frame):
            run.learn(events)
        run.checkpoint()
        users = torch.arange(-1, len(run.learner.tables["users"].ids))
        live, loaded = (
            run.learner.trainer.query_batch(users),
            load_run(tmp_path / "run").model.query_batch(users),
        )
        assert live.item.tolist() == loaded.item.tolist() == [-1] * len(users)
        assert live.columns.tolist() == loaded.columns.tolist() == [[-1]] * len(users)
        if kind == "hard deepfm":
            assert live.history is loaded.history is None
            return
        assert live.history.tolist() == loaded.history.tolist()
        ids = run.learner.tables["items"].ids
        assert live.history[0].tolist() == [-1] * 20
        for user, history in enumerate(live.history[1:].tolist()):
            who = run.learner.tables["users"].ids.decode([user])[0]
            items = frame.filter(pl.col("user") == who)["item"].to_list()[-20:]
            assert ids.decode([item for item in history if item >= 0]).to_list() == items
