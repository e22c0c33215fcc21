"""New versions come in while requests are under way."""

import shutil
import threading
import time

import numpy as np
import polars as pl
import pytest

from celrec.config.plan import Plan
from celrec.runs.online_run import OnlineRun
from celrec.runs.run_folder import load_run
from celrec.service.messages import RecommendRequest
from celrec.service.version import Versions
from celrec.streams.events import Events


def test_a_run_that_is_trained_anew_takes_over_without_a_request_failing(
    offline, make_offline, inside, tmp_path
):
    other = make_offline(tmp_path / "other", seed=5)
    with inside(offline) as server:
        _swap(server, offline, other, tmp_path / "retired")


def _swap(server, offline, other, retired):
    before = server.ask("/recommend?user=3&with_seen=true")[1]
    answers, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            answers.append(server.ask("/recommend?user=3&with_seen=true"))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    offline.rename(retired)
    time.sleep(0.2)  # for a while nothing stands there
    shutil.copytree(other, offline)
    server.until(lambda health: health["version"] == 2)
    time.sleep(0.1)
    stop.set()
    for thread in threads:
        thread.join()
    after = server.ask("/recommend?user=3&with_seen=true")[1]
    assert {status for status, _ in answers} == {200}
    assert {1, 2} == {told["version"] for _, told in answers} | {after["version"]}
    for _, told in answers:
        expected = before if told["version"] == 1 else after
        assert told["items"] == expected["items"]
    assert before["items"] != after["items"]


def test_what_cannot_be_read_is_told_and_the_old_version_answers(offline, inside):
    with inside(offline) as server:
        (offline / "model.safetensors").write_bytes(b"rotten")
        health = server.until(lambda health: health["status"] == "degraded")
        assert "damaged model.safetensors" in health["problem"]
        assert server.ask("/recommend?user=3")[0] == 200


def test_a_reader_follows_the_checkpoints_of_another_process(online, inside):
    with inside(online, read_only=True) as server:
        with OnlineRun.resume(online) as run:
            frame = pl.DataFrame({"user": ["new"], "item": ["fresh"], "target": [5.0]})
            run.learn(Events(frame, {}))
            run.checkpoint()
        server.until(lambda health: health["version"] == 2)
        assert server.ask("/recommend?user=new")[1]["known"]
        status, told = server.ask("/events", {"events": [{"user": 1, "item": 1, "target": 1}]})
        assert status == 409
        assert "--read-only" in told["error"]


@pytest.mark.parametrize("preset", ["default", "hard"])
def test_no_answer_is_of_a_half_learned_state(tmp_path, preset):
    """Answers that were given while the run learned are those of its checkpoints, to the last."""
    plan = Plan(embedding="cel-lite", compression="8", model="mf", preset=preset)
    rng = np.random.default_rng(0)
    wanted = RecommendRequest(users=["u1", "u2", "nobody"], k=12)
    given, expected, failed, stop = {}, {}, [], threading.Event()

    with OnlineRun.start(tmp_path / "run", plan) as run:

        def learn(step):
            users = [f"u{number}" for number in rng.integers(0, 20 + step, 100).tolist()]
            items = rng.integers(0, 15 + step, 100)
            targets = rng.normal(3, 1, 100).astype(np.float32)
            frame = pl.DataFrame({"user": users, "item": items, "target": targets})
            run.learn(Events(frame, {"step": step}))

        learn(0)
        versions = Versions(run.snapshot())

        def ask():
            try:
                while not stop.is_set():
                    told = versions.current.recommend(wanted)
                    lists = [[(one.item, one.score) for one in user.items] for user in told.users]
                    if given.setdefault(told.version, lists) != lists:
                        failed.append(told.version)
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for step in range(1, 25):
            learn(step)
            run.checkpoint()
            versions.publish(run.snapshot())
            number = versions.current.number
            loaded = Versions(load_run(tmp_path / "run", seen=True)).current.recommend(wanted)
            expected[number] = [
                [(one.item, one.score) for one in user.items] for user in loaded.users
            ]
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed
    assert len(set(given) & set(expected)) > 5
    for number in set(given) & set(expected):
        assert given[number] == expected[number]
