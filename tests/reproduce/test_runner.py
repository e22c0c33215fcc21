import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from celrec import CelrecError
from reproduce import runner
from reproduce.experiment import Experiment
from reproduce.report import Report
from reproduce.runner import Runner


class Squares(Experiment):
    """Squares of numbers, of which the last are known when the first are."""

    name, title = "squares", "Squares"

    def cells(self, known, *, quick):
        first = [{"number": number} for number in range(2 if quick else 4)]
        if not all(cell in known for cell in first):
            return first
        return [*first, {"number": sum(known.get(cell)["square"] for cell in first)}]

    def run(self, cell):
        if cell["number"] == int(os.environ.get("FATAL", "-1")):
            os.kill(os.getpid(), signal.SIGKILL)
        if cell["number"] == int(os.environ.get("WRONG", "-1")):
            raise CelrecError("number: wrong; take another")
        time.sleep(float(os.environ.get("SECONDS", "0")))
        return {
            "square": cell["number"] ** 2,
            "threads": [torch.get_num_threads(), os.environ["NUMBA_NUM_THREADS"]],
            "keeps_memory": os.environ.get("MALLOC_MMAP_MAX_") == "0",
            "process": os.getpid(),
        }

    def report(self, known, folder, *, quick):
        return Report("Squares", notes=[f"{len(known)} in {folder.name}, quick: {quick}"])


class Timed(Squares):
    name, timed = "timed", True


class Large(Squares):
    name, large = "large", True


@pytest.fixture
def squares():
    return Squares()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which everything is finished, and what was told on the way."""
    folder, told, before = tmp_path_factory.mktemp("results"), [], dict(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECONDS", "0.3")
        Runner(folder).run(Squares(), told.append)
    assert dict(os.environ) == before
    return folder, told


def test_everything_is_found_out_and_kept_in_rounds(finished, squares):
    folder, told = finished
    known = Runner(folder).known(squares)
    assert [known.get(cell)["square"] for cell in squares.cells(known, quick=False)] == [
        *(0, 1, 4, 9),
        14**2,
    ]
    assert [(one.finished, one.named) for one in told] == [
        *((finished, 4) for finished in range(5)),
        *((4, 5), (5, 5)),
    ]
    assert told[0].seconds_left is None
    assert told[4].seconds_left == 0
    assert known.get({"number": 3})["made_with"]["torch"] == torch.__version__


def test_two_processes_with_a_thread_each_work_side_by_side(finished, squares):
    known = Runner(finished[0]).known(squares)
    found = [known.get({"number": number}) for number in range(4)]
    assert all(one["threads"] == [1, "1"] for one in found)
    assert all(one["keeps_memory"] for one in found)
    assert len({one["process"] for one in found}) == 2


def test_what_takes_much_memory_runs_alone_with_one_thread(tmp_path, monkeypatch):
    asked = []

    class Pool(ThreadPoolExecutor):  # takes no time to begin
        def __init__(self, workers, context, begin, threads):
            asked.append((workers, context.get_start_method(), begin, *threads))
            super().__init__(workers)

    monkeypatch.setattr(runner, "ProcessPoolExecutor", Pool)
    Runner(tmp_path, workers=4).run(Large())
    assert asked == [(1, "spawn", runner.begin_worker, 1)]
    known = Runner(tmp_path).known(Large())
    assert len(known) == 5
    assert not known.get({"number": 0})["keeps_memory"]  # its peak is what is measured


class Borrowed(Squares):
    """Takes squares of even numbers from others, if these tell their process."""

    name = "table6"

    def serves(self, cell, found):
        return cell["number"] % 2 == 0 and "process" in found


def test_what_others_have_found_is_taken_over_if_it_serves(tmp_path):
    found = {"square": 400, "process": 0, "made_with": {"commit": "abc"}}
    lender = Squares()
    lender.name = "table5"
    for number in range(3):
        Runner(tmp_path).known(lender).keep({"number": number}, found)
    incomplete = {"square": 7}
    lender.name = "table10"
    Runner(tmp_path).known(lender).keep({"number": 0}, incomplete)
    told = []
    Runner(tmp_path, workers=1).run(Borrowed(), told.append)
    known = Runner(tmp_path).known(Borrowed())
    assert [known.get({"number": number})["square"] for number in range(4)] == [400, 1, 400, 9]
    assert known.get({"number": 0}) == found  # with what it was made with
    assert told[0].finished == 2
    assert len(known) == 5  # the sum of the first four is another cell
    assert known.get({"number": 810})["square"] == 810**2


def test_what_lies_beside_the_results_is_no_matter(tmp_path):
    (tmp_path / "mine.jsonl").write_text("not a cell\n")
    Runner(tmp_path, workers=1, quick=False).run(Borrowed())
    assert len(Runner(tmp_path).known(Borrowed())) == 5


def test_what_is_finished_is_not_done_again(finished, squares):
    told = []
    Runner(finished[0], workers=1).run(squares, told.append)
    assert told == []


def test_what_is_timed_runs_alone_with_all_threads(tmp_path):
    Runner(tmp_path, workers=4).run(Timed())
    known = Runner(tmp_path).known(Timed())
    found = [known.get({"number": number}) for number in range(4)]
    cores = os.cpu_count()
    assert all(one["threads"] == [cores, str(cores)] for one in found)
    assert len({one["process"] for one in found}) == 1


def test_an_error_in_a_cell_is_told_and_what_was_finished_is_kept_apart_if_quick(
    tmp_path, squares, monkeypatch
):
    monkeypatch.setenv("WRONG", "1")
    with pytest.raises(CelrecError, match="number: wrong"):
        Runner(tmp_path, quick=True, workers=1).run(squares)
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.jsonl")] == [
        "quick/squares.jsonl"
    ]
    known = Runner(tmp_path, quick=True).known(squares)
    assert [{"number": number} in known for number in range(2)] == [True, False]
    assert len(Runner(tmp_path).known(squares)) == 0


def test_a_process_that_is_killed_is_told_of(tmp_path, squares, monkeypatch):
    monkeypatch.setenv("FATAL", "2")
    with pytest.raises(CelrecError, match="squares: a process was killed, perhaps for want of"):
        Runner(tmp_path, workers=1).run(squares)
    monkeypatch.delenv("FATAL")
    Runner(tmp_path, workers=1).run(squares)
    assert len(Runner(tmp_path).known(squares)) == 5


def test_processes_end_with_the_program_that_started_them(tmp_path):
    program = (
        "import sys; from tests.reproduce.test_runner import Runner, Squares\n"
        "if __name__ == '__main__': Runner(sys.argv[1], workers=1).run(Squares())"
    )
    (tmp_path / "program.py").write_text(program)
    root = str(Path(__file__).parents[2])
    kept = tmp_path / "squares.jsonl"
    running = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path)],
        env={**os.environ, "SECONDS": "1", "PYTHONPATH": root},
    )
    while not (kept.exists() and kept.read_text().endswith("\n")):
        assert running.poll() is None
        time.sleep(0.05)
    running.kill()
    running.wait()
    worker = json.loads(kept.read_text().splitlines()[0])["found"]["process"]
    for _ in range(100):
        if not Path(f"/proc/{worker}").exists():
            break
        time.sleep(0.1)
    else:
        pytest.fail("it goes on")


def test_a_report_is_written_beside_the_cells(tmp_path, squares):
    runner = Runner(tmp_path / "new")
    assert runner.report(squares).notes == ["0 in new, quick: False"]
    assert (
        tmp_path / "new" / "squares.md"
    ).read_text() == "## Squares\n\n- 0 in new, quick: False\n"


def test_there_must_be_somebody_to_work(tmp_path):
    with pytest.raises(CelrecError, match="workers must be at least 1, not 0"):
        Runner(tmp_path, workers=0)


def test_a_file_in_the_place_of_the_folder_is_told_before_any_work(tmp_path, squares):
    (tmp_path / "results").touch()
    for todo in (Runner(tmp_path / "results").run, Runner(tmp_path / "results").report):
        with pytest.raises(CelrecError, match=r"results: .* cannot be a folder \(File exists\)"):
            todo(squares)
