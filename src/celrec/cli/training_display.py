"""The progress and the result of training, on a terminal."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from celrec.cli.terminal import Interruption, facts_table, progress_bar
from celrec.config.plan import Plan
from celrec.offline.checkpoint import Checkpoint
from celrec.offline.solver import ValidationRecord, Watcher


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
                completed=record.step,
                total=_steps(plan, stage),
                description=(
                    f"{stage}: step {record.step:,}  clusters {record.clusters:,}  "
                    f"train {record.train_loss:.4f}  {_valid(record)}"
                    f"moved {record.moved:,}"
                ),
            )

        yield watch


def _steps(plan: Plan, stage: str) -> int:
    how = (plan.pretraining or plan).settings()
    if stage.startswith("finish"):
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
    table.add_row("model", f"{plan.model}, {plan.side} compressed with {plan.embedding}")
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
