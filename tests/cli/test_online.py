import gzip
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import threading
import time

import polars as pl
import pytest
import torch

from celrec import Planted
from celrec.cli import training_display as online_display
from celrec.cli.main import main
from celrec.online import eviction as eviction
from celrec.runs.checkpoint_folder import CheckpointFolder
from celrec.runs.online_run import OnlineRun
from celrec.runs.run_folder import load_run
from celrec.runtime.state_file import load_state
from tests.streams.conftest import redis_server, redis_stream  # noqa: F401

# Runs the command in processes of its own, as often as it is told, and kills them if it is told.
FORKER = """
import json, os, signal, sys, time
import numba, torch
import celrec.cli.training_display, celrec.streams.file_source, celrec.runs.following
import celrec.streams.redis_source
from celrec.cli.main import main
torch.set_num_threads(1)  # threads do not survive a fork
os.fsync = lambda handle: None  # the kernel outlives the kill
# What loads parts of torch and numba when it is first used is used once here.
weight = torch.nn.Parameter(torch.zeros(1))
weight.grad = torch.zeros(1)
torch.optim.Adam([weight]).step()
numba.njit(lambda numbers: numbers + numbers.sum())(weight.grad.numpy())
for line in sys.stdin:
    words, seconds = json.loads(line)
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(main(words))
    code = None
    while code is None:
        if seconds is not None and time.monotonic() - begun >= seconds:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            code = -9
        else:
            ended, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
            time.sleep(0.001)
    print(json.dumps([code, time.monotonic() - begun]), flush=True)
"""


@pytest.fixture(scope="module")
def forked():
    """A function that runs the command in a process, which is killed after so many seconds."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def run(*words, seconds=None):
        process.stdin.write(json.dumps([["online", *map(str, words)], seconds]) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield run
    process.stdin.close()
    process.wait()
    process.stdout.close()


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log of 2,000 events, 40 of them malformed."""
    path = tmp_path_factory.mktemp("log") / "log.csv"
    planted = Planted(rows=2000, users=60, items=50, dim=2, item_clusters=4)
    lines = planted.interactions().to_frame().write_csv().splitlines()
    lines[50::50] = [f"7,{number},none,1600000000" for number in range(len(lines[50::50]))]
    path.write_text("\n".join(lines) + "\n")
    return path


WORDS = ["--rank", "3", "--compression", "6", "--window", "500", "--batch", "50"]
SOFT = [*WORDS, "--model", "mf", "--side", "both"]
HARD = [*WORDS, "--model", "deepfm", "--preset", "hard", "--loss", "cross-entropy"]
HARD += ["--positive", "2.5"]


def online(capsys, *words):
    assert main(["online", *map(str, words), "--json"]) == 0

    def constant(word):
        raise AssertionError(f"{word} is not JSON")

    lines = capsys.readouterr().out.splitlines()
    *windows, end = [json.loads(line, parse_constant=constant) for line in lines]
    assert [window["kind"] for window in windows] == ["window"] * len(windows)
    assert end["kind"] == "end"
    return windows, end


def outcome(folder):
    """All that a run has come to, without when and how often it was written."""
    [latest, *_] = CheckpointFolder(folder).whole()
    found = {path.name: path.read_bytes() for path in latest.iterdir()}
    about = json.loads(found["checkpoint.json"])["about"]
    seen = folder / "seen" / about["seen"].pop("file")  # how many there were does not matter
    found |= {"checkpoint.json": about, "seen": seen.read_bytes()}

    def plain(value):
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, torch.Tensor):
            return str(value.dtype), value.shape, value.numpy().tobytes()
        return value

    found["training.safetensors"] = plain(load_state(latest / "training.safetensors"))
    rejected = folder / "rejected.jsonl"
    return {**found, "rejected": rejected.read_bytes() if rejected.exists() else b""}


def assert_one_line(capsys, code, *parts):
    error = capsys.readouterr().err
    assert error.startswith("celrec: ")
    assert error.count("\n") == 1
    for part in parts:
        assert part in error
    assert code == 2


# What is told.


def test_json_tells_windows_and_the_end(capsys, log, tmp_path):
    windows, end = online(capsys, log, "--run", tmp_path / "run", *SOFT)
    assert [window["window"]["end"] for window in windows] == [500, 1000, 1500]
    assert (end["events"], end["rejected"], end["late"]) == (1960, 40, 0)
    assert end["stopped"] is False
    assert end["ids"] == {"users": 60, "items": 50}
    assert end["rows"] == {"users": 6, "items": 6}
    assert set(end["bytes"]) == {
        *("model", "training", "ids", "seen", "mapped", "resident", "anonymous")
    }
    assert end["bytes"]["resident"] > 10**7
    measured = end["overall"]
    assert measured["all"]["events"] == 1960
    assert measured["cold"]["events"] + measured["warm"]["events"] == 1960
    assert measured["warm"]["mse"] < measured["cold"]["mse"]
    assert measured["all"]["auc"] is None
    assert windows[-1]["window"]["all"]["mse"] < windows[0]["window"]["all"]["mse"]


def test_conversions_are_judged_by_auc_and_log_loss(capsys, log, tmp_path):
    windows, end = online(capsys, log, "--run", tmp_path / "run", *HARD)
    assert end["overall"]["all"]["auc"] > 0.6
    assert 0 < end["overall"]["all"]["log_loss"] < 1
    assert end["rows"]["items"] == 6
    assert windows[0]["window"]["cold"]["events"] > 0


def test_people_see_a_line_for_each_window(capsys, log, tmp_path):
    words = ["online", str(log), "--run", str(tmp_path / "run"), *SOFT]
    assert main(words) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert len(lines) == 4
    assert captured.err == ""
    assert lines[-1].startswith("1,960 events, MSE ")
    assert "50 items on 6 rows" in lines[-1]
    assert "40 rejected" in lines[-1]
    assert "in this window" in lines[0]


def test_on_a_terminal_people_see_a_table(log, tmp_path, monkeypatch):
    master, slave = os.openpty()
    monkeypatch.setattr(online_display, "REFRESH_SECONDS", 0.0)
    shown = b""
    with os.fdopen(slave, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        patch.setenv("TERM", "xterm")
        done = threading.Event()

        def read():
            nonlocal shown
            while not done.is_set() or select.select([master], [], [], 0)[0]:
                if select.select([master], [], [], 0.05)[0]:
                    shown += os.read(master, 1 << 16)

        reader = threading.Thread(target=read)
        reader.start()
        code = main(["online", str(log), "--run", str(tmp_path / "run"), *SOFT])
        terminal.flush()
        done.set()
        reader.join()
    os.close(master)
    assert code == 0
    for part in ("before learning", "resident", "40 rejected", "ids on 6 rows", "cold"):
        assert part in shown.decode()


def test_several_processes_are_refused_before_anything_is_written(
    capsys, log, tmp_path, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code = main(["online", str(log), "--run", str(tmp_path / "run"), *SOFT])
    assert_one_line(capsys, code, "--nproc-per-node", "2", "one process", "without torchrun")
    assert not (tmp_path / "run").exists()


def test_evaluate_and_clusters_take_an_online_run(capsys, log, tmp_path):
    for name, words in (("soft", SOFT), ("hard", HARD)):
        run = tmp_path / name
        online(capsys, log, "--run", run, *words)
        assert main(["evaluate", str(run), str(log), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["rows"], found["unseen"]) == (1960, {"users": 0, "items": 0})
        assert found["test"]["mse"] > 0
        assert (found["test"]["auc"] is None) == (name == "soft")
        assert main(["clusters", str(run), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert sum(cluster["members"] for cluster in found) == 50
        assert sum(cluster["interactions"] for cluster in found) == 1960
        assert 1 < len(found) <= 6
        assert_one_line(capsys, main(["evaluate", str(run)]), "give DATA")


def test_columns_are_named_and_further_ones_learned(capsys, tmp_path):
    rows = [
        {"who": n % 9, "what": f"thing {n % 7}", "stars": n % 5, "shop": n % 3 or None}
        for n in range(300)
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--user-column", "who", "--item-column", "what", "--id-column", "shop"]
    words += ["--model", "deepfm", "--rank", "4", "--compression", "3", "--batch", "64"]
    _, end = online(capsys, path, "--run", tmp_path / "run", *words)
    assert end["ids"] == {"users": 9, "items": 7, "shop": 2}
    run = load_run(tmp_path / "run")
    assert run.users["id"].dtype == pl.Int64
    assert run.columns["shop"]["interactions"].sum() == 200
    assert main(["evaluate", str(tmp_path / "run"), str(tmp_path / "log.csv")]) == 2
    pl.DataFrame(rows).write_csv(tmp_path / "log.csv")
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), str(tmp_path / "log.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unseen"] == {"users": 0, "items": 0}


# Going on.


def test_a_run_goes_on_where_it_was_and_comes_to_the_same(capsys, log, tmp_path):
    online(capsys, log, "--run", tmp_path / "whole" / "run", *SOFT)
    run, told = tmp_path / "parts" / "run", []
    for events in (1, 333, 700, 701, 1500):
        windows, end = online(capsys, log, "--run", run, *SOFT, "--events", events)
        told += windows
        # Batches are of 50 rows, one of which is malformed.
        assert end["events"] == -(-events // 49) * 49
    windows, end = online(capsys, log, "--run", run)  # the options are remembered
    assert end["events"] == 1960
    assert [window["window"]["end"] for window in [*told, *windows]] == [500, 1000, 1500]
    assert outcome(run) == outcome(tmp_path / "whole" / "run")
    before = outcome(run)
    assert online(capsys, log, "--run", run)[1]["events"] == 1960
    assert outcome(run) == before


def test_new_lines_and_new_files_are_learned(capsys, log, tmp_path):
    copy, more = tmp_path / "log.csv", tmp_path / "more.csv"
    lines = log.read_text().splitlines(keepends=True)
    copy.write_text("".join(lines[:1001]))
    online(capsys, copy, "--run", tmp_path / "run", *SOFT)
    copy.write_text("".join(lines))
    assert online(capsys, copy, "--run", tmp_path / "run")[1]["events"] == 1960
    more.write_text("".join(lines[:101]))
    assert online(capsys, copy, more, "--run", tmp_path / "run")[1]["events"] == 2058
    assert_one_line(capsys, main(["online", str(more), "--run", str(tmp_path / "run")]), "more.csv")


def test_options_that_contradict_the_run_are_named(capsys, log, tmp_path):
    run = tmp_path / "run"
    online(capsys, log, "--run", run, *SOFT, "--events", 100)
    for words, told in (
        (["--model", "deepfm"], "was started with --model mf, not deepfm"),
        (["--seed", "1"], "was started with --seed 0, not 1"),
        (["--compression", "7"], "was started with --compression 6, not 7"),
        (["--rank", "4"], "was started with --rank 3, not 4"),
        (["--id-column", "shop"], "was started with --id-column [], not ['shop']"),
        (["--user-column", "who"], "was started with --user-column None, not who"),
        (["--rate", "2"], "was started with --rate 1.0, not 2.0"),
        (["--personalise", "all"], "was started with --personalise none, not all"),
        (["--batch", "10"], "was started with --batch 50, not 10"),
        (["--window", "9"], "was started with --window 500, not 9"),
        (["--positive", "0"], "was started with --positive None, not 0.0"),
        (["--evict-after", "9d"], "was started with --evict-after None, not 9d"),
        # An option's former name is still taken.
        (["--forget-after", "9d"], "was started with --evict-after None, not 9d"),
    ):
        code = main(["online", str(log), "--run", str(run), *words])
        assert_one_line(capsys, code, told, "leave it out")
    assert online(capsys, log, "--run", run, *SOFT, "--seed", "0")[1]["events"] == 1960


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--compression", "1%"], "a share of ids that are not known yet"),
        (["--compression", "x"], "compression must be a share"),
        (["--expected-ids", "0", "--compression", "1%"], "expected_ids must be positive"),
        (["--embedding", "cel"], "is learned from a log, not from a stream"),
        (["--preset", "x"], "preset must be one of"),
        (["--model", "magic"], "model must be one of"),
        (["--loss", "ranking"], "loss must be one of"),
        (["--rate", "0"], "rate must be positive"),
        (["--window", "0"], "window must be at least 1 event"),
        (["--batch", "0"], "batch (--batch) must be at least 1"),
        (["--checkpoint-every", "0"], "(--checkpoint-every) must be at least 1"),
        (["--checkpoint-seconds", "nan"], "(--checkpoint-seconds) must not be negative"),
        (["--user-column", "who"], "no column 'who' for the user"),
        (["--id-column", "shop"], "looks at users and items only"),
        (["--loss", "cross-entropy"], "neither 0 nor 1 needs a `positive` one"),
        (["--evict-after", "5w"], "or a time such as 90d, 12h, 30m or 45s, not '5w'"),
        (["--embedding", "modulo", "--preset", "online", "--evict-after", "9"], "cannot drop ids"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_run(capsys, log, tmp_path, words, told):
    code = main(["online", str(log), "--run", str(tmp_path / "run"), "--rank", "3", *words])
    assert_one_line(capsys, code, told)
    # It can be put right in the same folder.
    assert online(capsys, log, "--run", tmp_path / "run", *SOFT)[1]["events"] == 1960


def test_a_source_that_is_not_there_is_one_line(capsys, tmp_path):
    words = ["online", str(tmp_path / "none.csv"), "--run", str(tmp_path / "run")]
    assert_one_line(capsys, main(words), "none.csv")


def test_a_source_that_breaks_is_told_when_all_before_is_safe(capsys, log, tmp_path):
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(gzip.compress(log.read_bytes(), 0)[:-3000])
    words = ["online", str(broken), "--run", str(tmp_path / "run"), *SOFT]
    assert_one_line(capsys, main(words), "broken.csv.gz")
    assert load_run(tmp_path / "run").result["events"] > 1000


def test_a_damaged_checkpoint_is_told_and_passed_over(capsys, log, tmp_path):
    online(capsys, log, "--run", tmp_path / "whole" / "run", *SOFT)
    run = tmp_path / "damaged" / "run"
    online(capsys, log, "--run", run, *SOFT, "--checkpoint-every", "500")
    latest, before = CheckpointFolder(run).whole()
    path = latest / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["online", str(log), "--run", str(run)]) == 0
    error = capsys.readouterr().err
    assert f"{path}: damaged, the checksum differs; going on from {int(before.name):,}" in error
    assert error.count("\n") == 1
    assert outcome(run) == outcome(tmp_path / "whole" / "run")


def test_a_full_disk_is_one_line_and_the_run_can_go_on(capsys, log, tmp_path):
    run = tmp_path / "run"
    online(capsys, log, "--run", run, *SOFT, "--events", 500)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        code = main(["online", str(log), "--run", str(run)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    error = capsys.readouterr().err
    assert code == 2
    assert error.count("\n") == 1
    assert "make room" in error
    assert online(capsys, log, "--run", run)[1]["events"] == 1960


# Ids that are silent.


@pytest.mark.parametrize("words", [SOFT, HARD], ids=["soft", "hard"])
def test_silent_ids_are_dropped_and_it_is_told(capsys, log, tmp_path, monkeypatch, words):
    monkeypatch.setattr(eviction, "SEARCH_EVERY", 100)
    run, words = tmp_path / "parts" / "run", [*words, "--evict-after", "60"]
    windows, end = online(capsys, log, "--run", tmp_path / "whole" / "run", *words)
    assert min(end["dropped"].values()) > 0
    assert windows[0]["dropped"]["users"] < end["dropped"]["users"]
    for events in (400, 401, 1000):
        online(capsys, log, "--run", run, *words, "--events", events)
    assert main(["online", str(log), "--run", str(run)]) == 0  # the option is remembered
    told = capsys.readouterr().out.splitlines()[-1]
    assert f"{sum(end['dropped'].values()):,} ids dropped" in told
    assert outcome(run) == outcome(tmp_path / "whole" / "run")
    code = main(["online", str(log), "--run", str(run), "--evict-after", "61"])
    assert_one_line(capsys, code, "was started with --evict-after 60, not 61", "leave it out")


def test_time_is_that_of_the_timestamps_and_needs_them(capsys, log, tmp_path, monkeypatch):
    monkeypatch.setattr(eviction, "SEARCH_EVERY", 100)
    words = ["--run", tmp_path / "run", *SOFT, "--evict-after", "1d"]
    bare = tmp_path / "bare.csv"
    pl.read_csv(log, infer_schema=False).drop("timestamp").write_csv(bare)
    code = main(["online", str(bare), *map(str, words)])
    assert_one_line(capsys, code, "evict_after '1d' goes by timestamps, and events have none")
    _, end = online(capsys, log, *words)
    assert end["dropped"]["users"] > 0


# Signals.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_batch_with_a_checkpoint(capsys, log, tmp_path, number):
    folder, run = tmp_path / "events", tmp_path / "run"
    folder.mkdir()
    (folder / "1.csv").write_bytes(log.read_bytes())
    timer = threading.Thread(target=hit_when, args=(run, number))
    timer.start()
    words = ["online", str(folder), "--run", str(run), *SOFT, "--checkpoint-every", "1000"]
    assert main([*words, "--json"]) == 0
    timer.join()
    captured = capsys.readouterr()
    assert captured.err == "celrec: stopped; the same command resumes from here\n"
    assert json.loads(captured.out.splitlines()[-1])["stopped"] is True
    done = load_run(run).result["events"]
    assert done >= 1000
    assert signal.getsignal(number) not in (signal.SIG_IGN, None)
    # It goes on with what is new.
    (folder / "2.csv").write_text("".join(log.read_text().splitlines(keepends=True)[:101]))
    total = 1960 + 98
    assert online(capsys, folder, "--run", run, "--events", total)[1]["events"] == total


def hit_when(run, number):
    """Send a signal to this process when the run has its first checkpoint."""
    while not CheckpointFolder(run).whole():
        time.sleep(0.005)
    os.kill(os.getpid(), number)


def test_a_second_process_is_refused(capsys, log, tmp_path):
    run = tmp_path / "run"
    online(capsys, log, "--run", run, *SOFT, "--events", 500)
    with OnlineRun.resume(run):
        code = main(["online", str(log), "--run", str(run)])
        assert_one_line(capsys, code, "another process works on this run")
        assert main(["clusters", str(run)]) == 0  # looking at it is allowed
        capsys.readouterr()
    assert online(capsys, log, "--run", run)[1]["events"] == 1960


# Memory.


def test_what_is_beyond_the_memory_is_told_and_changes_nothing(capsys, log, tmp_path):
    _, plain = online(capsys, log, "--run", tmp_path / "plain" / "run", *SOFT)
    run = tmp_path / "run"
    _, some = online(capsys, log, "--run", run, *SOFT, "--memory", "4kB", "--events", 500)
    _, none = online(capsys, log, "--run", run, "--memory", "0", "--events", 1000)
    _, end = online(capsys, log, "--run", run)
    assert plain["bytes"]["mapped"] == end["bytes"]["mapped"] == 0
    assert 0 < some["bytes"]["mapped"] < none["bytes"]["mapped"]
    assert end["bytes"]["anonymous"] <= end["bytes"]["resident"]
    assert outcome(run) == outcome(tmp_path / "plain" / "run")


def test_a_memory_that_is_no_size_is_one_line(capsys, log, tmp_path):
    assert main(["online", str(log), "--run", str(tmp_path / "run"), "--memory", "lots"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--memory must be a number of bytes such as 8GB" in error
    assert not (tmp_path / "run").exists()


# Killed.


def assert_kills_do_no_harm(forked, log, tmp_path, words, kills, seed):
    """Killed at random moments and started again, it comes to what it would have come to."""
    whole, run = tmp_path / "whole" / "run", tmp_path / "killed" / "run"
    code, took = forked(log, "--run", whole, *words)
    assert code == 0
    chance, killed = random.Random(seed), 0  # noqa: S311
    for _ in range(20 * kills):
        if killed >= kills:
            break
        code, _ = forked(log, "--run", run, *words, seconds=chance.uniform(0, took))
        killed += code == -9
        assert code in (0, -9)
        if code == 0:  # all done before it was killed; begin again
            assert outcome(run) == outcome(whole)
            run = tmp_path / f"killed {killed}" / "run"
    assert killed == kills
    code, _ = forked(log, "--run", run, *words)
    assert code == 0
    assert outcome(run) == outcome(whole)
    assert len(CheckpointFolder(run).whole()) == 2
    assert not [path for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("words", [SOFT, HARD], ids=["soft", "hard"])
def test_killed_at_random_moments_nothing_is_lost_or_learned_twice(forked, log, tmp_path, words):
    # With a checkpoint after every batch, most of the time goes to writing them.
    words = [*words, "--checkpoint-every", 50, "--events", 1000]
    assert_kills_do_no_harm(forked, log, tmp_path, words, kills=3, seed=1)


def test_a_killed_program_leaves_no_file_of_what_was_beyond_the_memory(forked, log, tmp_path):
    words = [*SOFT, "--checkpoint-every", 50, "--events", 200, "--memory", 0]
    assert_kills_do_no_harm(forked, log, tmp_path, words, kills=1, seed=3)
    for run in tmp_path.glob("*/run"):
        names = {"checkpoints", "lock", "rejected.jsonl", "seen"}
        assert {path.name for path in run.iterdir()} <= names


@pytest.mark.slow
@pytest.mark.parametrize("words", [SOFT, HARD], ids=["soft", "hard"])
@pytest.mark.parametrize("every", [50, 400])
def test_killed_fifty_times(forked, log, tmp_path, words, every):
    words = [*words, "--checkpoint-every", every]
    assert_kills_do_no_harm(forked, log, tmp_path, words, kills=50, seed=2)


# Brokers.


def test_a_program_killed_between_a_broker_and_its_disk_loses_nothing(
    capsys,
    forked,
    tmp_path,
    redis_stream,  # noqa: F811
):
    server, stream = redis_stream
    run, total = tmp_path / "run", 600
    for number in range(total):
        event = {"user": f"u{number}", "item": number % 20, "target": number % 5}
        if number % 40 == 7:
            event["target"] = "none"
        server.client.xadd(stream, event)
    good = [f"u{number}" for number in range(total) if number % 40 != 7]
    address = f"{server.url}/{stream}"
    words = [address, "--run", run, *SOFT, "--checkpoint-every", "100", "--events", len(good)]
    chance = random.Random(0)  # noqa: S311
    for _ in range(2):
        assert forked(*words, seconds=chance.uniform(0.3, 1.2))[0] in (-9, 0)
    _, end = online(capsys, *words)
    assert (end["events"], end["rejected"]) == (len(good), total - len(good))
    users = load_run(run).users
    assert sorted(users["id"]) == sorted(good)
    assert users["interactions"].to_list() == [1] * len(good)
    lines = [json.loads(line) for line in (run / "rejected.jsonl").read_text().splitlines()]
    assert len({line["place"] for line in lines}) == len(lines) == total - len(good)
    assert server.client.xpending(stream, "celrec-run")["pending"] == 0


@pytest.mark.parametrize("name", ["clicks.csv", "clicks.jsonl", "clicks.parquet"])
def test_events_without_targets_are_learned_beside_items_drawn_at_random(capsys, tmp_path, name):
    rows = Planted(600, 30, 20, dim=2, item_clusters=3).interactions().to_frame()
    path, run = tmp_path / name, tmp_path / "run"
    write = {"csv": "write_csv", "jsonl": "write_ndjson", "parquet": "write_parquet"}
    getattr(rows.select("user", "item"), write[name.partition(".")[2]])(path)
    words = ["online", str(path), "--run", str(run), "--compression", "4", "--json"]
    if name != "clicks.jsonl":  # there each event is one that has no target
        assert_one_line(capsys, main(words), "no target column")
    more = ["--loss", "cross-entropy", "--negatives", "2", "--window", "300"]
    assert main([*words, *more]) == 0
    *_, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert (end["events"], end["rejected"]) == (600, 0)
    assert load_run(run).items["interactions"].sum() == 600
    # It knows by its plan that no targets come, when it goes on.
    assert main(words[:4]) == 0
    capsys.readouterr()
