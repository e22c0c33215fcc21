"""Working through the cells of an experiment."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from celrec.errors import CelrecError
from celrec.evaluation.cell_file import CellFile
from celrec.runtime.atomic import atomic_file
from reproduce.experiment import Cell, Experiment
from reproduce.provenance import provenance
from reproduce.registry import NAMES
from reproduce.report import Report

_THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
# What is freed is kept for the next batch instead of being given back to the system (glibc reads
# these), which saves a quarter of the time of a network.
_KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an experiment is."""

    experiment: str
    finished: int
    named: int
    """How many cells can be named so far; there may be more when these are finished."""
    seconds_left: float | None
    """For the cells that can be named, by those that were finished since it was started."""


class Runner:
    """Runs what is missing of experiments, and keeps every finished cell at once.

    In `folder`, NAME.jsonl holds the finished cells of an experiment, and NAME.md and figures
    show what there is; what another one of the paper has found already for the same cell is taken
    over, and not done again. What is quick is kept apart, in a folder of its own. Two cells run
    side by side, each in a process with one thread; where time is measured, one with all threads,
    and where much memory is taken, one with one thread.
    """

    def __init__(self, folder: str | Path, *, quick: bool = False, workers: int = 2) -> None:
        if workers < 1:
            raise CelrecError(f"workers must be at least 1, not {workers}")
        self.quick, self._workers = quick, workers
        self.folder = Path(folder, "quick") if quick else Path(folder)

    def known(self, experiment: Experiment) -> CellFile:
        """The finished cells of an experiment."""
        return CellFile(self.folder / f"{experiment.name}.jsonl")

    def run(
        self, experiment: Experiment, tell: Callable[[Progress], None] = lambda _: None
    ) -> None:
        """Find out what is missing, until nothing is."""
        self._make_folder()
        known = self.known(experiment)
        with self._pool(experiment) as pool:
            while missing := self._missing(experiment, known):
                self._work(experiment, known, missing, pool, tell)

    def report(self, experiment: Experiment) -> Report:
        """Write down what there is so far; what was written."""
        self._make_folder()
        report = experiment.report(self.known(experiment), self.folder, quick=self.quick)
        with atomic_file(self.folder / f"{experiment.name}.md") as temporary:
            temporary.write_text(report.markdown())
        return report

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CelrecError(
                f"results: {str(self.folder)!r} cannot be a folder ({error.strerror}); name another"
            ) from error

    def _missing(self, experiment: Experiment, known: CellFile) -> list[Cell]:
        """What is to be done, after what others have found of it was taken over."""
        others: list[CellFile] | None = None
        while True:
            named = experiment.cells(known, quick=self.quick)
            missing = [cell for cell in named if cell not in known]
            if missing and others is None:
                others = self._others(experiment)
            lent = [(cell, _lent(experiment, cell, others or [])) for cell in missing]
            if not any(found for _, found in lent):
                return missing
            for cell, found in lent:
                if found is not None:
                    known.keep(cell, found)

    def _others(self, experiment: Experiment) -> list[CellFile]:
        """What other experiments have found."""
        paths = [self.folder / f"{name}.jsonl" for name in NAMES if name != experiment.name]
        return [CellFile(path) for path in paths if path.exists()]

    def _work(
        self,
        experiment: Experiment,
        known: CellFile,
        missing: Sequence[Cell],
        pool: ProcessPoolExecutor,
        tell: Callable[[Progress], None],
    ) -> None:
        begun = time.monotonic()
        finished = len(known)
        named = finished + len(missing)
        tell(Progress(experiment.name, finished, named, None))
        running: dict[Future[dict[str, Any]], Cell] = {
            pool.submit(_run, experiment, cell): cell for cell in missing
        }
        try:
            while running:
                ended = wait(running, return_when=FIRST_COMPLETED).done
                # What came to something is kept before an error is told of.
                for future in sorted(ended, key=lambda one: one.exception() is not None):
                    known.keep(running.pop(future), future.result())
                    done = len(known) - finished
                    left = (time.monotonic() - begun) / done * len(running)
                    tell(Progress(experiment.name, len(known), named, left))
        except BrokenProcessPool as error:
            raise CelrecError(
                f"{experiment.name}: a process was killed, perhaps for want of memory; what is "
                "finished is kept, so give the same command again, with --workers 1"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise

    @contextmanager
    def _pool(self, experiment: Experiment) -> Iterator[ProcessPoolExecutor]:
        workers = 1 if experiment.timed or experiment.large else self._workers
        threads = (os.cpu_count() or 1) if experiment.timed else 1
        # Numerical libraries read these when they are loaded, in the new process.
        wanted = dict.fromkeys(_THREADS, str(threads)) | ({} if experiment.large else _KEEP_MEMORY)
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        spawn = multiprocessing.get_context("spawn")
        try:
            with ProcessPoolExecutor(workers, spawn, begin_worker, (threads,)) as pool:
                yield pool
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _lent(experiment: Experiment, cell: Cell, others: Sequence[CellFile]) -> dict[str, Any] | None:
    """What serves for a cell of what others have found, None if nothing does."""
    found = (other.get(cell) for other in others)
    return next((one for one in found if one is not None and experiment.serves(cell, one)), None)


def begin_worker(threads: int) -> None:
    """Initialise a worker process, which ends when its parent ends."""
    torch.set_num_threads(threads)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Stop working when nobody is there any more to keep what comes of it."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101  (it runs in a process of a pool)
    parent.join()
    os._exit(1)


def _run(experiment: Experiment, cell: Cell) -> dict[str, Any]:
    """Work on a cell, in a process of its own."""
    return {**experiment.run(cell), "made_with": provenance()}
