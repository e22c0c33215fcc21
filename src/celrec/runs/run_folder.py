"""Run folders: trained recommenders on disk."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from celrec.config.building import describe_model, rebuild_model
from celrec.config.plan import Plan
from celrec.data.id_map import IdMap
from celrec.data.interactions import Interactions
from celrec.data.seen_items import SeenItems
from celrec.errors import CelrecError, first_line
from celrec.offline.solver import ValidationRecord
from celrec.online.known_ids import id_tables
from celrec.recommender.model import Model
from celrec.runs.checkpoint_folder import CheckpointFolder
from celrec.runs.seen_log import read_seen, read_seen_log, seen_in, write_seen
from celrec.runtime.atomic import atomic_folder
from celrec.runtime.memory_budget import MemoryBudget

_FORMAT = 3
_HISTORY = "history.parquet"
_JUDGEMENTS = "judgements.parquet"


@dataclass(frozen=True, slots=True)
class Run:
    """A trained model with its ids, and the records of its training."""

    model: Model
    known: Interactions
    """A log without rows that holds the ids; new data are read `like` it."""
    users: pl.DataFrame
    """id, interactions, mean_target and, for clustered tables, cluster, in dense order."""
    items: pl.DataFrame
    """The same, and title where there are titles."""
    columns: dict[str, pl.DataFrame]
    """The same for the ids in further columns of the log."""
    plan: Plan
    source: dict[str, Any]
    """Where the data came from and how they were split."""
    result: dict[str, Any]
    """The results of training."""
    seen: SeenItems | None = None
    """The items that users have seen, if loaded; earlier versions did not record them."""
    validation_records: pl.DataFrame = field(default_factory=pl.DataFrame)
    """The validation records of training; empty for an online run."""
    past: pl.DataFrame | None = None
    """The interactions in histories, in dense ids and in order."""

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """The tables of ids by name: users, items, further columns."""
        return {"users": self.users, "items": self.items, **self.columns}


def trained_run(
    log: Interactions,
    model: Model,
    plan: Plan,
    validation_records: dict[str, list[ValidationRecord]],
    source: dict[str, Any],
    result: dict[str, Any],
    *,
    seen: Interactions | None = None,
) -> Run:
    """The run of a model trained on `log`; `seen` is all that users have seen, if that is more."""
    log = log.seen()
    tables = id_tables(log, model)
    past = None
    if model.history_length:
        columns = {"user": log.user, "item": log.item, "timestamp": log.timestamp}
        past = pl.DataFrame({name: v for name, v in columns.items() if v is not None})
    records = [
        {"stage": stage, **asdict(record)}
        for stage, several in validation_records.items()
        for record in several
    ]
    watched = seen_in(log if seen is None else seen)
    return Run(
        *(model, log[:0], tables.pop("users"), tables.pop("items"), tables, plan, source, result),
        seen=watched,
        validation_records=pl.DataFrame(records),
        past=past,
    )


def save_run(path: str | Path, run: Run) -> None:
    """Write a run folder atomically; an existing run folder is replaced, nothing else is.

    It has `config.json`, `result.json`, `model.safetensors`, the validation records, and tables of
    the original ids in dense order with interactions, mean targets, clusters and titles:
    `users.parquet`, `items.parquet` and one for each further column. `seen.parquet` has the seen
    items in chronological order, and `history.parquet` the interactions of models with histories.
    """
    check_place(path)
    with atomic_folder(Path(path)) as folder:
        run.validation_records.write_parquet(folder / _JUDGEMENTS)
        try:
            write_run(
                folder, run.model, run.plan, run.source, run.result, run.tables, run.past, run.seen
            )
        except SafetensorError as error:  # also raised when the disk is full
            raise CelrecError(f"{path}: cannot write the model ({error}); make room") from error


def write_run(
    folder: Path,
    model: Model,
    plan: Plan,
    source: dict[str, Any],
    result: dict[str, Any],
    tables: dict[str, pl.DataFrame],
    past: pl.DataFrame | None,
    seen: SeenItems | None = None,
) -> None:
    """Write the files that `load_run` reads to an existing folder.

    `tables` are those of `ids_table`, `past` the interactions in histories. Checkpoints have no
    `seen` items, which are in the `SeenLog`.
    """
    columns = [name for name in tables if name not in ("users", "items")]
    config = {
        "format": _FORMAT,
        "plan": asdict(plan),
        "source": source,
        "model": describe_model(model),
        "columns": columns,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "result.json").write_text(json.dumps(result, indent=2))
    save_file(dict(model.state_dict()), folder / "model.safetensors")
    tables["users"].write_parquet(folder / "users.parquet")
    tables["items"].write_parquet(folder / "items.parquet")
    for number, name in enumerate(columns):
        tables[name].write_parquet(folder / f"column_{number}.parquet")
    if past is not None:
        past.write_parquet(folder / _HISTORY)
    if seen is not None:
        write_seen(folder, seen)


def check_place(path: str | Path) -> None:
    """Complain if a run folder at `path` would take the place of anything but another one."""
    folder = Path(path)
    if folder.name in ("", ".."):
        raise CelrecError(f"{path}: a run needs a folder of its own; name a new one")
    names = ("config.json", "result.json", _JUDGEMENTS)
    if all((folder / name).is_file() for name in names):
        return
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise CelrecError(f"{path}: is there and no run folder; choose another place for the run")


def load_run(path: str | Path, *, seen: bool = False, budget: MemoryBudget | None = None) -> Run:
    """Read what `save_run` wrote, or the latest checkpoint of an online run.

    What users have seen is read on request. With a `budget`, per-id arrays beyond it are mapped
    files.
    """
    checkpoints = CheckpointFolder(Path(path))
    while (found := checkpoints.latest()) is not None:
        try:
            run = _load(found.folder, seen=False, budget=budget)
            if not seen:
                return run
            noted = found.about.get("seen")
            return replace(run, seen=read_seen_log(Path(path), noted, run.known, budget))
        except CelrecError:
            if found.folder.exists():  # else a running process has removed it meanwhile
                raise
    return _load(Path(path), seen=seen, budget=budget)


def _load(folder: Path, *, seen: bool, budget: MemoryBudget | None) -> Run:
    if not (folder / "config.json").is_file():
        raise CelrecError(f"{folder}: not a run folder, there is no config.json in it")
    try:
        config = json.loads((folder / "config.json").read_text())
        result = json.loads((folder / "result.json").read_text())
        if config["format"] != _FORMAT:
            raise CelrecError(f"{folder}: written in format {config['format']}, expected {_FORMAT}")
        plan, source = Plan(**config["plan"]), config["source"]
        users, items = (_read_ids(folder / f"{side}.parquet") for side in ("users", "items"))
        columns = {
            name: _read_ids(folder / f"column_{number}.parquet")
            for number, name in enumerate(config["columns"])
        }
        tables = {"users": users, "items": items, **columns}
        ids = {name: IdMap(table.get_column("id"), budget) for name, table in tables.items()}
        known = Interactions.without_rows(ids.pop("users"), ids.pop("items"), ids)
        model = rebuild_model(plan, config["model"], budget)
        model.load_state_dict(load_file(folder / "model.safetensors"))
        past = None
        if model.history_length:
            past = _read_ids(folder / _HISTORY)
            model.remember(with_rows(known, past))
        watched = read_seen(folder, known) if seen else None
        noted = (folder / _JUDGEMENTS).is_file()
        validation_records = _read_ids(folder / _JUDGEMENTS) if noted else pl.DataFrame()
    except CelrecError:
        raise
    except SafetensorError as error:
        raise CelrecError(f"{folder}: damaged model.safetensors ({error}); train again") from error
    except (
        *(OSError, LookupError, TypeError, ValueError, AttributeError, RuntimeError),
        pl.exceptions.PolarsError,
    ) as error:
        raise CelrecError(
            f"{folder}: damaged run folder ({first_line(error)}); train again"
        ) from error
    return Run(
        *(model, known, users, items, columns, plan, source, result),
        seen=watched,
        validation_records=validation_records,
        past=past,
    )


def _read_ids(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path)
    except pl.exceptions.PolarsError as error:
        raise CelrecError(f"{path}: damaged ({first_line(error)}); train again") from error


def with_rows(known: Interactions, rows: pl.DataFrame) -> Interactions:
    """The log `known` with the `past` of a run as its rows."""
    times = rows.get_column("timestamp").to_numpy() if "timestamp" in rows.columns else None
    return replace(
        known,
        user=rows.get_column("user").to_numpy(),
        item=rows.get_column("item").to_numpy(),
        target=np.zeros(len(rows), np.float32),
        timestamp=times,
        columns={},
    )
