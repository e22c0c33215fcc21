"""Runs to serve, and servers of their own process."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest
from fastapi.testclient import TestClient

import celrec
from celrec.cli.online import opened_run
from celrec.runs.following import Pace
from celrec.runs.run_folder import save_run, trained_run
from celrec.service.app import make_app
from celrec.service.guard import Limits
from celrec.service.service import Service
from celrec.streams.events import Events


@pytest.fixture(scope="session")
def online_once(tmp_path_factory):
    """A run that has learned 2,000 planted ratings of 40 users u0 … and 30 items 0 …"""
    log = celrec.Planted(2_000, 40, 30, dim=2, item_clusters=3, noise=0.1).interactions()
    users = [f"u{number}" for number in log.user.tolist()]
    frame = pl.DataFrame({"user": users, "item": log.item.astype("int64"), "target": log.target})
    folder = tmp_path_factory.mktemp("served") / "online"
    with opened_run(folder, {"compression": "4"}) as run:
        run.learn(Events(frame, {}))
        run.offset = None
        run.checkpoint()
    return folder


@pytest.fixture
def online(online_once, tmp_path):
    """The folder of an online run."""
    return Path(shutil.copytree(online_once, tmp_path / "online"))


@pytest.fixture(scope="session")
def make_offline():
    """A function that trains on planted ratings and writes a run folder."""

    def make(folder, seed=0, titles=None):
        planted = celrec.Planted(2_000, 40, 30, dim=2, item_clusters=3, noise=0.1, seed=seed)
        frame = planted.interactions().to_frame()
        features = pl.DataFrame({"item": range(30), "title": titles}) if titles else None
        log = celrec.read(frame, item_features=features) if titles else celrec.read(frame)
        plan = celrec.Plan(compression="3", rank=4, seed=seed)
        model = celrec.fit(celrec.Split.random(log), plan).model
        save_run(folder, trained_run(log, model, plan, {}, {}, {"seed": seed}))
        return folder

    return make


@pytest.fixture(scope="session")
def offline_once(tmp_path_factory, make_offline):
    return make_offline(tmp_path_factory.mktemp("served") / "offline")


@pytest.fixture
def offline(offline_once, tmp_path):
    """The folder of a run that was trained offline."""
    return Path(shutil.copytree(offline_once, tmp_path / "offline"))


class Asking:
    """What both kinds of server have in common."""

    def send(self, *events):
        """Send events; the number of the last."""
        status, told = self.ask("/events", {"events": list(events)})
        assert status == 202, told
        return told["last"]

    def wait_for(self, learned, seconds=30):
        """Until so many events are in the answers."""
        return self.until(lambda health: health["learned"] >= learned, seconds)

    def until(self, fulfilled, seconds=30):
        """Until the health is as it should be; gives it."""
        deadline = time.monotonic() + seconds
        while not fulfilled(health := self.ask("/healthz")[1]):
            assert time.monotonic() < deadline, health
            time.sleep(0.02)
        return health


class Inside(Asking):
    """A service in this process."""

    def __init__(self, client):
        self.client = client

    def ask(self, path, body=None, headers=None):
        """The status and the JSON of an answer."""
        if body is None:
            answer = self.client.get(path, headers=headers)
        else:
            answer = self.client.post(path, json=body, headers=headers)
        return answer.status_code, answer.json()


@pytest.fixture
def inside():
    """A context that serves a folder in this process."""

    @contextmanager
    def serve(folder, pace=Pace, limits=None, key=None, **options):
        app = make_app(Service(folder, pace, **options), limits or Limits(), key, loopback=False)
        with TestClient(app) as client:
            yield Inside(client)

    return serve


class Server(Asking):
    """`celrec serve` in a process of its own."""

    def __init__(self, folder, *options, environment=None):
        command = [sys.executable, "-m", "celrec", "serve", str(folder), "--port", "0", *options]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        )
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.process.communicate()[1])
        self.address = next(word for word in line.split() if word.startswith("http"))

    def ask(self, path, body=None, headers=None):
        """The status and the JSON of an answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.address + path, data, headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def connect(self):
        host, _, port = self.address.removeprefix("http://").rpartition(":")
        return socket.create_connection((host, int(port)), timeout=30)

    def kill(self):
        """As a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self, number=signal.SIGTERM):
        """As an operator would; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture
def start():
    """A function that starts a server."""
    servers = []

    def make(folder, *options, environment=None):
        servers.append(Server(folder, *options, environment=environment))
        return servers[-1]

    yield make
    for server in servers:
        if server.process.poll() is None:
            server.kill()
        server.process.stdout.close()
        server.process.stderr.close()
