"""`celrec online` with brokers, in processes of its own."""

import json
import os
import signal
import subprocess
import sys
import threading

import polars as pl
import pytest
import torch

from celrec.cli.main import main
from celrec.runs.checkpoint_folder import CheckpointFolder
from celrec.runtime.state_file import load_state
from tests.streams.conftest import (  # noqa: F401
    kafka_cluster,
    kafka_topic,
    redis_server,
    redis_stream,
)

# In batches of one, it does not matter how many events a broker has at hand at a moment.
WORDS = ["--rank", "3", "--compression", "6", "--window", "40", "--batch", "1"]
MALFORMED = [b"{", b'{"user": 7}', b"[]", b'{"user": "x", "item": 1, "target": "none"}', b"\xff"]


def lines(number):
    """Events as JSON, one in seven malformed; each good one has a user of its own."""
    return [
        MALFORMED[place // 7 % len(MALFORMED)]
        if place % 7 == 3
        else json.dumps({"user": f"u{place}", "item": place % 9, "target": place % 5}).encode()
        for place in range(number)
    ]


class Kafka:
    def __init__(self, cluster, topic):
        self._cluster, self._topic = cluster, topic
        self.address = f"kafka://{cluster.servers}/{topic}"

    def send(self, values):
        self._cluster.send(self._topic, *values, partition=1)  # one, since only that has an order

    def kept_for(self, group):
        """How many messages of the partition the group is still to be given."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._cluster.servers, "group.id": group})
        place = TopicPartition(self._topic, 1)
        [committed] = consumer.committed([place], timeout=10)
        _, end = consumer.get_watermark_offsets(place, timeout=10)
        consumer.close()
        return end - committed.offset


class Redis:
    def __init__(self, server, stream):
        self._client, self._stream = server.client, stream
        self.address = f"{server.url}/{stream}"

    def send(self, values):
        for value in values:
            self._client.xadd(self._stream, {"json": value})

    def kept_for(self, group):
        """How many entries the group has not got, or has not acknowledged."""
        groups = self._client.xinfo_groups(self._stream)
        [found] = [one for one in groups if one["name"] == group.encode()]
        last = found["last-delivered-id"].decode()
        return found["pending"] + len(self._client.xrange(self._stream, min=f"({last}"))


@pytest.fixture(params=["kafka", "redis"])
def broker(request):
    if request.param == "kafka":
        return Kafka(*request.getfixturevalue("kafka_topic"))
    return Redis(*request.getfixturevalue("redis_stream"))


def stopped(words, after):
    """Run the command in a process, and tell it to stop when it has learned so many events."""
    command = [sys.executable, "-m", "celrec", "online", *map(str, words), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        timer = threading.Timer(60, process.kill)
        timer.start()
        told = []
        for line in process.stdout:
            told.append(json.loads(line))
            if told[-1]["events"] >= after:
                process.send_signal(signal.SIGTERM)
                break
        told += map(json.loads, process.stdout)
        error = process.stderr.read()
        timer.cancel()
    return process.returncode, told, error


def online(*words):
    """Run the command here; a minute without an end is a failure, and no reason to wait on."""
    timer = threading.Timer(60, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        assert main(["online", *map(str, words), "--json"]) == 0
    finally:
        timer.cancel()


def learned(run):
    """What a run has come to, without where it was read."""
    [latest, *_] = CheckpointFolder(run).whole()
    kept = ("model.safetensors", "users.parquet", "items.parquet", "result.json", "config.json")
    found = {name: (latest / name).read_bytes() for name in kept}

    def plain(value):
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        return value.numpy().tobytes() if isinstance(value, torch.Tensor) else value

    state = plain(load_state(latest / "training.safetensors"))
    rejected = (run / "rejected.jsonl").read_text().splitlines()
    return {**found, "state": state, "reasons": [json.loads(line)["reason"] for line in rejected]}


def test_stopped_in_the_middle_it_comes_to_what_a_file_gives(capsys, broker, tmp_path):
    values = lines(350)
    good = sum(place % 7 != 3 for place in range(350))
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join(values))
    online(log, "--run", tmp_path / "file" / "run", *WORDS)
    run = tmp_path / "broker" / "run"
    words = [broker.address, "--run", run, *WORDS, "--events", good, "--checkpoint-every", "30"]

    broker.send(values[:150])  # and while there are no others, it waits
    code, told, error = stopped(words, after=80)
    assert error == b"celrec: stopped; the same command resumes from here\n"
    assert code == 0
    assert (told[-1]["kind"], told[-1]["stopped"]) == ("end", True)
    assert 80 <= told[-1]["events"] < 150

    broker.send(values[150:])
    capsys.readouterr()
    online(*words)
    end = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (end["events"], end["rejected"]) == (good, 350 - good)
    users = pl.read_parquet(CheckpointFolder(run).whole()[0] / "users.parquet")
    assert users["interactions"].to_list() == [1] * good
    assert learned(run) == learned(tmp_path / "file" / "run")
    assert broker.kept_for("celrec-run") == 0


def test_after_a_damaged_checkpoint_a_broker_is_read_again(capsys, broker, tmp_path):
    values = lines(210)
    good = sum(place % 7 != 3 for place in range(210))
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join(values))
    online(log, "--run", tmp_path / "file" / "run", *WORDS)
    run = tmp_path / "broker" / "run"
    words = [broker.address, "--run", run, *WORDS]
    broker.send(values)
    online(*words, "--events", 60)
    online(*words, "--events", 120)
    latest, before = CheckpointFolder(run).whole()
    path = latest / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    capsys.readouterr()
    online(*words, "--events", good)
    error = capsys.readouterr().err
    assert f"{path}: damaged, the checksum differs; going on from {int(before.name):,}" in error
    assert learned(run) == learned(tmp_path / "file" / "run")
    assert broker.kept_for("celrec-run") == 0
