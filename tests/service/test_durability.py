"""What was acknowledged is there, whatever happens to the process."""

import errno
import json
import os
import random
import shutil
import threading
import time
from functools import partial

import pytest

from celrec.cli.main import main
from celrec.errors import CelrecError
from celrec.runs.following import Pace
from celrec.runs.online_run import OnlineRun

CSV = "user,item,rating\n" + "".join(f"u{n % 7},{n % 5},{1 + n % 5}\n" for n in range(60))
NEVER = partial(Pace, checkpoint_seconds=3600.0)
ALWAYS = partial(Pace, checkpoint_seconds=0.0)


def event(number, user="sent"):
    return {"user": f"{user}{number}", "item": number % 9, "target": 1 + number % 5}


def users_of(folder):
    with OnlineRun.resume(folder) as run:
        ids, counts = (
            run.learner.tables["users"].ids.ids.to_list(),
            run.learner.tables["users"].counts.tolist(),
        )
    return dict(zip(ids, counts, strict=True))


def crashed(folder):
    """What a process that dies now leaves behind."""
    return shutil.copytree(folder, folder.with_name(f"{folder.name}-crashed"))


def test_after_a_kill_every_acknowledged_event_is_there_once(online, start):
    server = start(online)
    last = [server.send(event(number)) for number in range(30)][-1]
    server.kill()
    again = start(online)
    health = again.wait_for(last)
    assert (health["learned"], health["events"]) == (30, 2_030)
    taken, lost = [], []

    def send(worker):
        for number in range(100_000):
            try:
                again.send(event(number, f"w{worker}-"))
            except OSError:  # nobody listens any more
                return
            except Exception as error:
                lost.append(error)
                return
            taken.append(1)

    threads = [threading.Thread(target=send, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    assert again.stop() == 0  # while requests are under way
    for thread in threads:
        thread.join()
    assert not lost
    assert taken
    assert again.process.stderr.read() == ""
    with OnlineRun.resume(online) as run:
        assert run.journal >= 30 + len(taken)
        assert run.events == 2_000 + run.journal
    counts = users_of(online)
    assert {counts[f"sent{number}"] for number in range(30)} == {1}


def test_events_before_and_after_a_checkpoint_count_once(online, inside):
    with inside(online, ALWAYS) as server:
        server.wait_for(server.send(*map(event, range(20))))
    with inside(online, NEVER) as server:
        server.wait_for(server.send(*map(event, range(20, 35))))
        image = crashed(online)
    with inside(image) as server:
        assert server.wait_for(35)["events"] == 2_035
    assert sum(n for name, n in users_of(image).items() if name.startswith("sent")) == 35


def test_a_run_that_reads_a_file_is_served_and_then_reads_on(tmp_path, inside, capsys):
    log, run = tmp_path / "log.csv", tmp_path / "run"
    log.write_text(CSV)
    command = ["online", str(log), "--run", str(run), "--compression", "4", "--json"]
    assert main(command) == 0
    with inside(run, NEVER) as server:
        server.wait_for(server.send(*map(event, range(10))))
        image = crashed(run)  # what it took is in the journal only
    log.write_text(CSV + "late,1,5\n")
    assert main(["online", str(log), "--run", str(image), "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()][-1]
    assert told["events"] == 61
    with inside(image) as server:
        assert server.wait_for(10)["events"] == 71
    users = users_of(image)
    assert sum(users.values()) == 71
    assert users["late"] == 1
    assert main(["online", str(log), "--run", str(image), "--json"]) == 0
    assert users_of(image) == users
    # And the other way: served to its end first, then read on.
    assert main(["online", str(log), "--run", str(run), "--json"]) == 0
    assert users_of(run) == users


def test_a_damaged_checkpoint_costs_nothing_but_time(online, inside):
    with inside(online) as server:
        server.send(*map(event, range(12)))
    latest = max((online / "checkpoints").iterdir(), key=lambda path: path.name)
    (latest / "model.safetensors").write_bytes(b"rotten")
    with inside(online) as server:
        assert server.wait_for(12)["events"] == 2_012
    assert sum(n for name, n in users_of(online).items() if name.startswith("sent")) == 12


def test_files_of_the_journal_go_when_both_checkpoints_are_past_them(online, inside, monkeypatch):
    monkeypatch.setattr("celrec.streams.journal.SEGMENT", 300)
    with inside(online, ALWAYS) as server:
        for number in range(40):
            last = server.send(event(number))
            if number % 10 == 9:
                server.wait_for(last)
    assert len(list((online / "journal").iterdir())) <= 12
    with inside(online) as server:
        assert server.wait_for(40)["events"] == 2_040


def test_a_full_disk_refuses_events_and_answers_go_on(online, inside, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with inside(online, ALWAYS) as server:
        server.wait_for(server.send(event(1)))
        with monkeypatch.context() as disk:
            disk.setattr("celrec.streams.journal.os.fdatasync", full)
            status, told = server.ask("/events", {"events": [event(2)]})
            assert status == 507
            assert "No space left" in told["error"]
            assert "make room" in told["error"]
            assert server.ask("/recommend?user=u1")[0] == 200
        last = server.send(event(3))
        assert last == 2
        server.wait_for(last)
    counts = users_of(online)
    assert (counts["sent1"], counts["sent3"], "sent2" in counts) == (1, 1, False)


def test_a_checkpoint_that_cannot_be_written_is_told_and_tried_again(online, inside, monkeypatch):
    monkeypatch.setattr("celrec.service.learning.RETRY_AFTER", 0.05)

    def refuse(*_):
        raise CelrecError("checkpoints: cannot write a checkpoint (No space left on device)")

    with inside(online, ALWAYS) as server:
        with monkeypatch.context() as disk:
            disk.setattr(OnlineRun, "checkpoint", refuse)
            server.wait_for(server.send(event(1)))
            health = server.until(lambda health: health["status"] == "degraded")
            assert "No space left" in health["problem"]
            server.wait_for(server.send(event(2)))
        server.until(lambda health: health["status"] == "ok")
    assert users_of(online)["sent2"] == 1


def test_when_learning_is_at_its_end_events_are_refused_and_answers_go_on(
    online, inside, monkeypatch
):
    with inside(online) as server:

        def spoilt(*_):
            raise CelrecError("predictions are not finite any more")

        monkeypatch.setattr(OnlineRun, "learn_journal", spoilt)
        server.send(event(1))
        health = server.until(lambda health: health["status"] == "degraded")
        assert health["waiting"] == 1
        status, told = server.ask("/events", {"events": [event(2)]})
        assert status == 503
        assert "not finite" in told["error"]
        assert server.ask("/recommend?user=u1")[0] == 200
    monkeypatch.undo()
    with inside(online) as server:
        assert server.wait_for(1)["events"] == 2_001


def test_two_processes_do_not_work_on_one_run(online, inside):
    with inside(online):
        with pytest.raises(CelrecError, match="another process works on this run"):
            inside(online).__enter__()
        with inside(online, read_only=True) as reader:
            assert reader.ask("/events", {"events": [event(1)]})[0] == 409


@pytest.mark.slow
def test_many_kills_at_any_moment_lose_nothing_and_count_nothing_twice(online, start):
    chance = random.Random(0)  # noqa: S311
    acknowledged, sent = set(), 0
    for _ in range(10):
        server = start(online, "--checkpoint-seconds", "0.2")
        killer = threading.Timer(chance.uniform(0.2, 2.0), server.process.kill)
        killer.start()
        try:
            while True:
                numbers = range(sent, sent + chance.randint(1, 40))
                sent = numbers.stop
                server.send(*map(event, numbers))
                acknowledged.update(numbers)
        except OSError:  # killed; whether the last request was taken nobody knows
            pass
        killer.join()
        server.process.wait()
    server = start(online)
    server.wait_for(server.send(event(sent)))
    assert server.stop() == 0
    counts = {
        int(name.removeprefix("sent")): n
        for name, n in users_of(online).items()
        if name.startswith("sent")
    }
    assert len(acknowledged) > 500
    assert acknowledged <= counts.keys()
    assert set(counts.values()) == {1}
