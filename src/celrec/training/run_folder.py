"""A trained recommender on disk."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from celrec.data.atomic import atomic_folder
from celrec.data.id_column import IdColumn
from celrec.data.id_map import IdMap
from celrec.data.interactions import Interactions
from celrec.data.seen_items import SeenItems
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.errors import CelrecError
from celrec.training.building import describe_model, rebuild_model
from celrec.training.checkpoint_folder import CheckpointFolder
from celrec.training.judgement import Judgement
from celrec.training.model import Model
from celrec.training.plan import Plan
from celrec.training.recommender import Recommender
from celrec.training.seen_file import read_seen, seen_in, write_seen
from celrec.training.seen_log import read_seen_log

_FORMAT = 3
_HISTORY = "history.parquet"
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Run:
    """A recommender with the ids it knows, and all that was noted about its training."""

    model: Model
    known: Interactions
    """A log without rows that holds the ids: what new data are read `like`."""
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
    """What it reached."""
    seen: SeenItems | None = None
    """What each user has seen, if that was asked for; earlier versions did not tell."""


def save_run(
    path: str | Path,
    log: Interactions,
    model: Model,
    plan: Plan,
    judgements: dict[str, list[Judgement]],
    source: dict[str, Any],
    result: dict[str, Any],
    *,
    seen: Interactions | None = None,
) -> None:
    """Write a run folder, whole or not at all; one that stands there is replaced.

    Anything else that stands there is not. `log` is what the model was trained on; `seen` all
    that users have seen, with the same ids, if that is more.
    Holds `config.json`, `result.json`, `judgements.parquet`, `model.safetensors`,
    and `users.parquet` and `items.parquet` with the original ids in dense order,
    their training interactions, mean targets, clusters and titles, a table like
    these for each further column of ids, `seen.parquet` with the dense ids of all that was seen
    in the order of time, and for models that look at what users did before
    `history.parquet`, the training interactions in dense ids.
    """
    check_place(path)
    log = log.seen()
    rows = model.tables
    tables = {
        "users": _table_of(log, log.user_ids, log.user, rows["users"], log.user_features),
        "items": _table_of(log, log.item_ids, log.item, rows["items"], log.item_features),
    }
    for name, column in log.columns.items():
        if name in rows:
            tables[name] = _table_of(log, column.ids, column.values, rows[name])
    past = None
    if isinstance(model, Recommender) and model.history_length:
        columns = {"user": log.user, "item": log.item, "timestamp": log.timestamp}
        past = pl.DataFrame({name: v for name, v in columns.items() if v is not None})
    watched = seen_in(log if seen is None else seen)
    with atomic_folder(Path(path)) as folder:
        pl.DataFrame(
            [
                {"stage": stage, **asdict(judgement)}
                for stage, several in judgements.items()
                for judgement in several
            ]
        ).write_parquet(folder / "judgements.parquet")
        try:
            write_run(folder, model, plan, source, result, tables, past, watched)
        except SafetensorError as error:  # how it tells that the disk is full
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
    """Write all that `load_run` reads to a folder that is there.

    `tables` are those of users, items and further columns as `ids_table` makes them, `past`
    the interactions that a model looks back at, in their order. What users have `seen` is not
    written for a checkpoint: see `SeenLog`.
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


def _table_of(
    log: Interactions,
    ids: IdMap,
    dense: NDArray[np.int32],
    table: Embedding,
    features: pl.DataFrame | None = None,
) -> pl.DataFrame:
    size, seen = min(len(ids), table.num_embeddings), dense >= 0
    counts = np.bincount(dense[seen], minlength=size)
    sums = np.bincount(dense[seen], log.target[seen], size).astype(np.float64)
    shown = ids_table(ids.ids[:size], counts, sums, table)
    if features is not None and "title" in features.columns:
        shown = shown.with_columns(title=features.get_column("title"))
    return shown


def ids_table(
    ids: pl.Series, counts: NDArray[np.int64], sums: NDArray[np.float64], table: Embedding
) -> pl.DataFrame:
    """Original ids in dense order, and what there is to say of each.

    Given how many interactions each has, and the sums of their targets.
    """
    columns = {
        "id": ids,
        "interactions": counts,
        "mean_target": np.where(counts > 0, sums / np.maximum(counts, 1), np.nan),
    }
    size = len(ids)
    if isinstance(table, PersonalEmbedding):
        columns["private"] = (table.own_of(torch.arange(size)) >= 0).numpy()
        table = table.shared
    if isinstance(table, ClusteredEmbedding):
        columns["cluster"] = table.assignment[:size].int().numpy()
    if isinstance(table, PosteriorEmbedding):
        starts = range(0, max(size, 1), _CHUNK)
        parts = [table.nearest(torch.arange(s, min(s + _CHUNK, size))) for s in starts]
        columns["cluster"] = torch.cat(parts).int().numpy()
    if isinstance(table, MixedEmbedding):
        columns["private"] = table.private(torch.arange(size)).numpy()
    return pl.DataFrame(columns)


def check_place(path: str | Path) -> None:
    """Complain if a run folder at `path` would take the place of anything but another one."""
    folder = Path(path)
    if folder.name in ("", ".."):
        raise CelrecError(f"{path}: a run needs a folder of its own; name a new one")
    names = ("config.json", "result.json", "judgements.parquet")
    if all((folder / name).is_file() for name in names):
        return
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise CelrecError(f"{path}: is there and no run folder; choose another place for the run")


def load_run(path: str | Path, *, seen: bool = False) -> Run:
    """Read what `save_run` wrote, or the latest checkpoint of an online run.

    What users have seen is read if it is asked for.
    """
    checkpoints = CheckpointFolder(Path(path))
    while (found := checkpoints.latest()) is not None:
        try:
            run = _load(found.folder, seen=False)
            if not seen:
                return run
            noted = found.about.get("seen")
            return replace(run, seen=read_seen_log(Path(path), noted, run.known))
        except CelrecError:
            if found.folder.exists():  # else a running process has removed it meanwhile
                raise
    return _load(Path(path), seen=seen)


def _load(folder: Path, *, seen: bool) -> Run:
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
        nobody = np.empty(0, np.int32)
        known = Interactions(
            user=nobody,
            item=nobody,
            target=nobody.astype(np.float32),
            timestamp=None,
            user_ids=IdMap(users.get_column("id")),
            item_ids=IdMap(items.get_column("id")),
            columns={
                name: IdColumn(nobody, IdMap(table.get_column("id")))
                for name, table in columns.items()
            },
        )
        model = rebuild_model(plan, config["model"])
        model.load_state_dict(load_file(folder / "model.safetensors"))
        if isinstance(model, Recommender) and model.history_length:
            model.remember(_with_rows(known, _read_ids(folder / _HISTORY)))
        watched = read_seen(folder, known) if seen else None
    except CelrecError:
        raise
    except SafetensorError as error:
        raise CelrecError(f"{folder}: damaged model.safetensors ({error}); train again") from error
    except (
        *(OSError, LookupError, TypeError, ValueError, AttributeError, RuntimeError),
        pl.exceptions.PolarsError,
    ) as error:
        problem = str(error).partition("\n")[0]
        raise CelrecError(f"{folder}: damaged run folder ({problem}); train again") from error
    return Run(model, known, users, items, columns, plan, source, result, watched)


def _read_ids(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path)
    except pl.exceptions.PolarsError as error:
        problem = str(error).partition("\n")[0]
        raise CelrecError(f"{path}: damaged ({problem}); train again") from error


def _with_rows(known: Interactions, rows: pl.DataFrame) -> Interactions:
    times = rows.get_column("timestamp").to_numpy() if "timestamp" in rows.columns else None
    return replace(
        known,
        user=rows.get_column("user").to_numpy(),
        item=rows.get_column("item").to_numpy(),
        target=np.zeros(len(rows), np.float32),
        timestamp=times,
        columns={},
    )
