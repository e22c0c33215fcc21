"""The progress and the results of training and of online runs, on a terminal."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from celrec.cli.terminal import Interruption, facts_table, progress_bar
from celrec.config.plan import Plan
from celrec.evaluation.prequential import Measured, Prequential, Window
from celrec.offline.checkpoint import Checkpoint
from celrec.offline.fitting import COMPRESS, FINISH
from celrec.offline.solver import ValidationRecord, Watcher
from celrec.runs.online_run import OnlineRun


@contextmanager
def resumable(checkpoint: Checkpoint) -> Iterator[None]:
    """An interruption says how to resume, once there is a checkpoint."""
    try:
        yield
    except KeyboardInterrupt as error:
        if not checkpoint.begun:
            raise
        raise Interruption("interrupted; the same command with --resume goes on") from error


@contextmanager
def training_progress(plan: Plan, *, shown: bool = True) -> Iterator[Watcher]:
    """A bar that shows step, clusters, losses and reassigned ids."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with progress_bar(*columns, shown=shown) as bar:
        task = bar.add_task("training", total=None)

        def watch(stage: str, record: ValidationRecord) -> None:
            bar.update(
                task,
                completed=record.step or _steps(plan, stage),
                total=_steps(plan, stage),
                description=_progress(plan, stage, record),
            )

        yield watch


def _progress(plan: Plan, stage: str, record: ValidationRecord) -> str:
    if stage.startswith(COMPRESS.name):
        return f"{stage}: rows {record.clusters:,}  {_valid(record)}"
    words = f"{stage}: step {record.step:,}  "
    losses = f"train {record.train_loss:.4f}  {_valid(record)}"
    if (plan.pretraining or plan).full_fit is not None and not stage.startswith(FINISH.name):
        return words + losses
    return f"{words}clusters {record.clusters:,}  {losses}moved {record.moved:,}"


def _steps(plan: Plan, stage: str) -> int:
    how = (plan.pretraining or plan).settings()
    if stage.startswith(FINISH.name):
        return plan.settings().schedule.steps
    return (how.personal if stage.startswith("personalise") else how.schedule).steps


def _valid(record: ValidationRecord) -> str:
    return f"valid {record.valid_loss:.4f}  " if math.isfinite(record.valid_loss) else ""


def show_result(
    data: str, plan: Plan, picked: str, result: dict[str, Any], out: Path | None
) -> None:
    """Print the errors, sizes and times of a trained model."""
    table = facts_table()
    test, size = result["test"], result["bytes"]
    table.add_row("data", escape(data))
    table.add_row("why so", escape(picked))
    levels = f" in {plan.levels} levels" if plan.levels > 1 else ""
    side = plan.side if plan.budget is None else "both"
    table.add_row("model", f"{plan.model}, {side} compressed with {plan.embedding}{levels}")
    table.add_row("rows of items", f"{result['clusters']:,}, after {result['steps']:,} steps")
    valid = _error(next(iter(result["valid"].values())), "without data")
    if plan.loss == "squared-error" and not plan.only_positive:
        tested = _error(test["mse"], "no test data")
        table.add_row("test MSE", f"[bold]{tested}[/]  (validation {valid})")
        for name in ("cold", "warm"):
            table.add_row(f"  {name} items", _error(test[f"mse_{name}"], "none in the test data"))
    else:
        tested = _error(test["auc"], "nothing to compare")
        table.add_row("test AUC", f"[bold]{tested}[/]  (validation loss {valid})")
        table.add_row("  cold items", _error(test["auc_cold"], "none in the test data"))
    if "conversion_auc" in test:
        table.add_row("conversion AUC", _error(test["conversion_auc"], "nothing to compare"))
    table.add_row("item table", f"{size['table']:,} bytes and {size['index']:,} of index")
    table.add_row("user table", f"{size['other_side']:,} bytes")
    for name, total in size["columns"].items():
        table.add_row(f"{escape(name)} table", f"{total:,} bytes")
    if size["network"]:
        table.add_row("network", f"{size['network']:,} bytes")
    if result["growth"]:
        table.add_row("why so many", result["growth"])
    table.add_row("time", f"{result['seconds']:.1f} s")
    if out is not None:
        table.add_row("run folder", escape(str(out)))
        table.add_row("look at it", f"celrec report {escape(shlex.quote(str(out)))}")
    Console(highlight=False).print(table)


def _error(error: float | None, otherwise: str) -> str:
    return otherwise if error is None else f"{error:.4f}"


Display: TypeAlias = Callable[[list[Window]], None]
REFRESH_SECONDS = 1.0


class Status:
    """Counts, sizes and metrics of a run at this moment."""

    def __init__(self, run: OnlineRun, metrics: Prequential) -> None:
        self._run, self._metrics = run, metrics
        self._begun, self._first = time.monotonic(), run.events

    def as_dict(self) -> dict[str, Any]:
        """All of them, ready for JSON."""
        run, seconds = self._run, time.monotonic() - self._begun
        learner = run.learner
        return {
            "events": run.events,
            "rejected": run.rejected,
            "late": run.late,
            "events_per_second": (run.events - self._first) / max(seconds, 1e-9),
            "ids": learner.known,
            "dropped": learner.dropped,
            "rows": learner.rows,
            "bytes": {**learner.nbytes, "mapped": run.mapped, **_resident()},
            "overall": _by_slice(self._metrics.overall()),
        }

    def line(self, window: Window | None = None) -> str:
        """The most important ones, in a line."""
        now, overall = self.as_dict(), self._metrics.overall()
        words = [f"{now['events']:,} events", f"{_metric(overall['all'])} overall"]
        words.append(f"{_metric(overall['cold'])} cold")
        if window is not None:
            words.append(f"{_metric(window.measured['all'])} in this window")
        words += [
            f"{now['ids'][name]:,} {name} on {rows:,} rows" for name, rows in now["rows"].items()
        ]
        words.append(f"{now['events_per_second']:,.0f}/s")
        if now["rejected"]:
            words.append(f"{now['rejected']:,} rejected")
        if now["late"]:
            words.append(f"{now['late']:,} late")
        if dropped := sum(now["dropped"].values()):
            words.append(f"{dropped:,} ids dropped")
        return ", ".join(words)

    def table(self) -> Table:
        """The table that a terminal shows."""
        now, overall = self.as_dict(), self._metrics.overall()
        table = facts_table()
        table.add_row(
            "events",
            f"{now['events']:,}  {now['events_per_second']:,.0f}/s  "
            f"{now['rejected']:,} rejected, {now['late']:,} late",
        )
        for name, rows in now["rows"].items():
            dropped = f", {now['dropped'][name]:,} dropped" if now["dropped"][name] else ""
            table.add_row(name, f"{now['ids'][name]:,} ids on {rows:,} rows{dropped}")
        for name, shown in (("all", "before learning"), ("cold", "  cold"), ("warm", "  warm")):
            table.add_row(shown, f"{_metric(overall[name])}, {overall[name].events:,} events")
        size = now["bytes"]
        table.add_row(
            "bytes",
            f"model {size['model']:,}, training {size['training']:,}, ids {size['ids']:,}, "
            f"seen {size['seen']:,}, of these in files {size['mapped']:,}; "
            f"resident {size['resident']:,}, without files {size['anonymous']:,}",
        )
        return table


@contextmanager
def display(status: Status, *, as_json: bool) -> Iterator[Display]:
    """A function that shows windows: as JSON, in a live table on a terminal, or in lines."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if as_json:
        yield lambda windows: _print_windows(status, windows)
        return
    if not console.is_terminal:

        def print_lines(windows: list[Window]) -> None:
            for window in windows:
                typer.echo(status.line(window))
                sys.stdout.flush()

        yield print_lines
        return
    shown = time.monotonic()
    with Live(status.table(), console=console, auto_refresh=False, transient=True) as live:

        def refresh(windows: list[Window]) -> None:
            nonlocal shown
            if windows or time.monotonic() - shown >= REFRESH_SECONDS:
                live.update(status.table(), refresh=True)
                shown = time.monotonic()

        yield refresh


def _print_windows(status: Status, windows: list[Window]) -> None:
    for window in windows:
        measured = {"end": window.end, **_by_slice(window.measured)}
        typer.echo(json.dumps({"kind": "window", **status.as_dict(), "window": measured}))
        sys.stdout.flush()


def _by_slice(measured: dict[str, Measured]) -> dict[str, Any]:
    return {name: one._asdict() for name, one in measured.items()}


def _metric(measured: Measured) -> str:
    if measured.auc is not None:
        loss = "" if measured.log_loss is None else f", log loss {measured.log_loss:.4f}"
        return f"AUC {measured.auc:.4f}{loss}"
    return "nothing" if measured.mse is None else f"MSE {measured.mse:.4f}"


def _resident() -> dict[str, int]:
    """The resident set size, with and without mapped files; its peak where /proc does not exist."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        _, resident, files, *_ = map(int, statm.read_text().split())
        page = os.sysconf("SC_PAGE_SIZE")
        return {"resident": resident * page, "anonymous": (resident - files) * page}
    try:
        import resource
    except ImportError:  # Windows
        return {}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    most *= 1 if sys.platform == "darwin" else 1024
    return {"resident": most, "anonymous": most}
