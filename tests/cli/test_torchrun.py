"""`torchrun -m celrec train`: several processes, and some of them killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
import torch

from celrec import Planted
from celrec.runs.run_folder import load_run

TORCHRUN = Path(sys.executable).with_name("torchrun")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


@pytest.fixture
def log(tmp_path):
    events = Planted(6_000, 80, 60, dim=3, item_clusters=6, noise=0.3).interactions().to_frame()
    events.write_csv(tmp_path / "log.csv")
    return tmp_path / "log.csv"


def words(log, out, *more):
    return [
        "train",
        str(log),
        "--compression",
        "6",
        "--rank",
        "4",
        "--model",
        "nmf",
        "--out",
        str(out),
        *more,
    ]


def start(processes, arguments, *options):
    launcher = [TORCHRUN, "--standalone", "--nproc-per-node", str(processes), *options]
    return subprocess.Popen(
        [*launcher, "-m", "celrec", *arguments],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_alike(one, other):
    first, second = load_run(one, seen=True), load_run(other, seen=True)
    assert first.items.equals(second.items, null_equal=True)
    assert first.result["steps"] == second.result["steps"]
    assert first.result["test"]["mse"] == pytest.approx(second.result["test"]["mse"], rel=1e-3)


@pytest.mark.slow
def test_two_processes_write_the_run_that_one_writes(log, tmp_path):
    alone = [sys.executable, "-m", "celrec", *words(log, tmp_path / "alone")]
    subprocess.run(alone, env=ENVIRONMENT, check=True, capture_output=True)
    both = start(2, words(log, tmp_path / "both", "--json"))
    out, err = both.communicate(timeout=300)
    assert both.returncode == 0, err
    assert json.loads(out)["steps"] > 0  # one of them speaks
    assert_alike(tmp_path / "alone", tmp_path / "both")


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize("everybody", [False, True])
def test_after_a_kill_training_goes_on_from_the_last_checkpoint(log, tmp_path, everybody):
    # Long enough to be killed in the middle, and judged often.
    big = Planted(400_000, 3_000, 2_000, dim=6, item_clusters=30, noise=0.5)
    big.interactions().to_frame().write_csv(log)
    more = ("--compression", "60", "--rank", "16")
    never = start(2, words(log, tmp_path / "never", *more))
    _, err = never.communicate(timeout=900)
    assert never.returncode == 0, err
    killed = start(2, words(log, tmp_path / "killed", *more), "--max-restarts", "3")
    unfinished = tmp_path / "killed.unfinished"
    until = time.monotonic() + 600
    while not unfinished.exists() and time.monotonic() < until:
        time.sleep(0.05)
    for worker in children(killed.pid)[: None if everybody else 1]:
        os.kill(worker, signal.SIGKILL)
    _, err = killed.communicate(timeout=900)
    assert killed.returncode == 0, err
    assert_alike(tmp_path / "never", tmp_path / "killed")
    steps = pl.read_parquet(tmp_path / "killed" / "judgements.parquet").filter(stage="choose")
    assert steps["step"].is_sorted()
    assert steps["step"].is_unique().all()


NETWORK = ("--model", "deepfm", "--preset", "scratch", "--side", "both")


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["scratch", "default"])
def test_two_processes_write_the_network_that_one_writes(log, tmp_path, preset):
    network = ("--model", "deepfm", "--preset", preset)
    alone = [sys.executable, "-m", "celrec", *words(log, tmp_path / "alone", *network)]
    subprocess.run(alone, env=ENVIRONMENT, check=True, capture_output=True)
    both = start(2, words(log, tmp_path / "both", "--json", *network))
    out, err = both.communicate(timeout=900)
    assert both.returncode == 0, err
    assert json.loads(out)["steps"] > 0
    # Rounding grows over some hundred batches, until an id moves that another run leaves.
    first, second = (load_run(tmp_path / name).result["test"]["mse"] for name in ("alone", "both"))
    assert first == pytest.approx(second, rel=0.05)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A log that takes two processes a while, and what they make of it."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    planted = Planted(60_000, 600, 300, dim=4, item_clusters=12, user_clusters=10, noise=0.5)
    planted.interactions().to_frame().write_csv(folder / "log.csv")
    never = start(2, words(folder / "log.csv", folder / "run", *NETWORK))
    _, err = never.communicate(timeout=900)
    assert never.returncode == 0, err
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("everybody", [False, True])
@pytest.mark.parametrize("moment", ["training", "writing"])
def test_after_a_kill_a_network_is_that_of_processes_that_nobody_killed(
    uninterrupted, tmp_path, everybody, moment
):
    arguments = words(uninterrupted / "log.csv", tmp_path / "run", *NETWORK)
    killed = start(2, arguments, "--max-restarts", "3")
    # A checkpoint is written under a name that begins with a dot.
    sign = ".run.unfinished*" if moment == "writing" else "run.unfinished"
    until = time.monotonic() + 600
    while not list(tmp_path.glob(sign)) and time.monotonic() < until:
        time.sleep(0.0005)
    workers = children(killed.pid)
    assert len(workers) == 2
    for worker in workers[: None if everybody else 1]:
        os.kill(worker, signal.SIGKILL)
    _, err = killed.communicate(timeout=900)
    assert killed.returncode == 0, err
    one, other = load_run(uninterrupted / "run"), load_run(tmp_path / "run")
    assert one.result["test"] == other.result["test"]
    expected = one.model.state_dict()
    assert all(
        torch.equal(value, expected[name]) for name, value in other.model.state_dict().items()
    )
