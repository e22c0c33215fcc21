"""A stream that several processes learn together."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from celrec import Plan, Planted
from celrec.clustering.ranks import Ranks
from celrec.data.streams.events import Events
from celrec.errors import CelrecError
from celrec.training import plain_side, soft_side
from celrec.training.assisting import assist
from celrec.training.online_learner import OnlineLearner
from celrec.training.online_run import OnlineRun

WORKER = """
import sys
import time
import torch
from torch import distributed
from celrec.clustering.ranks import Ranks
from celrec.training import plain_side, soft_side
from tests.training import test_online_together as here

rank, size, folder, name, script = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
torch.set_num_threads(1)
distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/{script}-meet", rank=rank, world_size=size
)
plain_side.id_noise = soft_side.id_noise = here.without_noise
here.take_part(name, script, folder, Ranks.here())
distributed.destroy_process_group()
time.sleep(0.2)  # its threads end a moment later
"""
BATCH = 200
PLANS = {
    "mf": {"model": "mf", "compression": "6", "side": "both", "rank": 4},
    "nmf, items only": {"model": "nmf", "compression": "6", "side": "items", "rank": 4},
    "clicks": {"model": "mf", "compression": "6", "rank": 4, "negatives": 2},
    "deepfm": {
        "model": "deepfm",
        "side": "both",
        "compression": "6",
        "rank": 4,
        "loss": "cross-entropy",
    },
    "din, shops": {
        "model": "din",
        "side": "both",
        "compression": "6",
        "rank": 4,
        "loss": "cross-entropy",
    },
    "hard": {"model": "mf", "preset": "hard", "side": "both", "compression": "12", "rank": 4},
    "hard deepfm": {
        "model": "deepfm",
        "preset": "hard",
        "side": "both",
        "compression": "12",
        "rank": 4,
        "loss": "cross-entropy",
    },
    "hard din, shops": {
        "model": "din",
        "preset": "hard",
        "side": "both",
        "compression": "12",
        "rank": 4,
        "loss": "cross-entropy",
    },
    "hard clicks, items only": {
        "model": "mf",
        "preset": "hard",
        "side": "items",
        "compression": "12",
        "rank": 4,
        "negatives": 2,
    },
    "paper": {"model": "nmf", "preset": "paper", "side": "both", "compression": "12", "rank": 4},
    "paper din, shops": {
        "model": "din",
        "preset": "paper",
        "side": "both",
        "compression": "30",
        "rank": 4,
        "loss": "cross-entropy",
    },
}
QUICK = (("mf", 2), ("hard", 2))
SAME_START = ("mf", "deepfm", "din, shops")
"""Those with no rows that begin by chance for each number, nor negatives."""
SCRIPTS = {
    "whole": (0, 15),
    "first half": (0, 8),
    "second half": (8, 15),
    "first third": (0, 5),
    "second third": (5, 10),
    "last third": (10, 15),
}
MEMORY = {"first half": 0, "second half": 5000}  # and no bounds for the whole


def plan(name):
    told = {"embedding": "cel-lite", **PLANS[name]}
    if told.get("loss") == "cross-entropy":
        told["positive"] = 3.0
    if told.get("negatives"):
        told |= {"loss": "cross-entropy", "positive": 3.0}
    return Plan(**told)


def columns(name):
    return ["shop"] if "shops" in name else []


def stream(name):
    """Batches of events; some of users that come late, and some without a shop."""
    log = Planted(BATCH * 15, 70, 50, dim=3, item_clusters=6, user_clusters=5, noise=0.3)
    frame = log.interactions().to_frame()
    frame = frame.select("user", pl.format("film {}", "item").alias("item"), "target")
    if columns(name):
        shop = pl.when(pl.col("user") % 7 > 0).then(pl.col("user") % 5)
        frame = frame.with_columns(shop.alias("ids:shop"))
    return [frame[start : start + BATCH] for start in range(0, len(frame), BATCH)]


def without_noise(first, last, width, seed):  # noqa: ARG001  (as `id_noise`)
    """Ids are numbered otherwise by several processes: chance would be, too."""
    yield slice(0, last - first), np.zeros((last - first, width), np.float32)


def take_part(name, script, folder, ranks):
    """Learn a part of the stream; the first writes what was predicted."""
    if not ranks.first:
        assist(ranks)
        return
    begin, end = SCRIPTS[script]
    run = Path(folder, "run")
    memory = MEMORY.get(script)
    opened = (
        OnlineRun.resume(run, ranks, memory)
        if begin
        else OnlineRun.start(run, plan(name), columns(name), ranks=ranks, memory=memory)
    )
    told = []
    with opened:
        for number, frame in enumerate(stream(name)[begin:end]):
            learned = opened.learn(Events(frame, {"row": begin + number}))
            told.append([one.tolist() for one in learned])
            if number % 3 == 1:
                opened.checkpoint()
        opened.checkpoint()
        known = opened.known
    Path(folder, f"{script}.json").write_text(json.dumps({"told": told, "known": known}))


def learned(folder, name, size, script="whole"):
    folder.mkdir(exist_ok=True)
    if size == 1:
        with pytest.MonkeyPatch.context() as patched:
            for module in (plain_side, soft_side):
                patched.setattr(module, "id_noise", without_noise)
            take_part(name, script, folder, Ranks.alone())
    else:
        words = [str(size), str(folder), name, script]
        workers = [
            subprocess.Popen([sys.executable, "-c", WORKER, str(rank), *words])
            for rank in range(size)
        ]
        assert [worker.wait(timeout=120) for worker in workers] == [0] * size
    found = json.loads((folder / f"{script}.json").read_text())
    return [np.concatenate(part) for part in zip(*found["told"], strict=True)], found["known"]


def state(folder):
    """What a run knows of ids, by their original names."""
    with OnlineRun.resume(folder / "run") as run:
        known = {name: run.learner._shown()[name] for name in run.tables}
        names = [run.tables[one].ids.ids.to_list() for one in ("users", "items")]
        seen = {(names[0][u], names[1][i]) for u, i in zip(*run.seen.events(), strict=True)}
        counts = {
            name: dict(zip(frame["id"].to_list(), frame["interactions"].to_list(), strict=True))
            for name, frame in known.items()
        }
        histories = {}
        if run.model.history_length:
            history = run.trainer.history
            owner, past = history.events(np.arange(history.num_ids))
            for user, item in zip(owner, past["item"], strict=True):
                histories.setdefault(names[0][user], []).append(names[1][item])
        return {"events": run.events, "seen": seen, "counts": counts, "histories": histories}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *QUICK,
        *(
            pytest.param(name, size, marks=pytest.mark.slow)
            for name in PLANS
            for size in (2, 4)
            if (name, size) not in QUICK
        ),
    ],
)
def test_several_processes_predict_and_know_what_one_does(tmp_path, name, size):
    alone, known = learned(tmp_path / "one", name, 1)
    together, of_all = learned(tmp_path / "several", name, size)
    assert known == of_all
    assert state(tmp_path / "one") == state(tmp_path / "several")
    predictions, targets, users, items = (
        np.stack(pair) for pair in zip(alone, together, strict=True)
    )
    np.testing.assert_array_equal(*targets)
    np.testing.assert_array_equal(*users)
    if "negatives" not in PLANS[name]:  # which are drawn by each process
        np.testing.assert_array_equal(*items)
    if name in SAME_START:
        # Later, evidence that was rounded otherwise leads to somewhat other rows.
        np.testing.assert_allclose(*predictions[:, : 2 * BATCH], rtol=1e-3, atol=1e-3)
        assert np.abs(predictions[0] - predictions[1]).mean() < 0.05 * targets.std()
    errors = np.square(predictions - targets).mean(1)
    assert errors[1] == pytest.approx(errors[0], rel=0.1)


@pytest.mark.parametrize(("first", "then"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.slow)])
def test_what_some_have_kept_others_can_go_on_with(tmp_path, first, then):
    whole, _ = learned(tmp_path / "whole", "mf", 1)
    halves = [
        learned(tmp_path / "halves", "mf", size, script)[0]
        for size, script in ((first, "first half"), (then, "second half"))
    ]
    together = [np.concatenate(pair) for pair in zip(*halves, strict=True)]
    np.testing.assert_array_equal(together[2], whole[2])
    np.testing.assert_allclose(
        together[0][: 2 * BATCH], whole[0][: 2 * BATCH], rtol=1e-3, atol=1e-3
    )
    assert np.abs(together[0] - whole[0]).mean() < 0.05 * whole[1].std()
    assert state(tmp_path / "halves") == state(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mf", "hard", "hard din, shops", "paper"])
def test_two_processes_that_were_stopped_come_to_the_same_bits_as_two_that_were_not(tmp_path, name):
    whole, _ = learned(tmp_path / "whole", name, 2)
    halves = [
        learned(tmp_path / "halves", name, 2, script)[0] for script in ("first half", "second half")
    ]
    for one, other in zip(whole, zip(*halves, strict=True), strict=True):
        np.testing.assert_array_equal(one, np.concatenate(other))


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        ({"preset": "hard", "personalise": "5"}, "PersonalEmbedding"),
        ({"personalise": "5"}, "PersonalEmbedding"),
        ({"preset": "hard", "model": "mmoe", "positive": 3.0}, "a model with several outputs"),
        ({"embedding": "modulo", "preset": "online"}, "ModuloEmbedding"),
    ],
)
def test_what_only_one_process_can_learn_is_refused(told, complaint):
    how = Plan(**{"embedding": "cel-lite", "model": "mf", "compression": "4", **told})
    with pytest.raises(CelrecError, match=f"2 processes cannot learn {complaint}"):
        OnlineLearner.start(how, ranks=Ranks(0, 2))
