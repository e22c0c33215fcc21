"""A trained recommender on disk."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from celrec.data.atomic import atomic_folder
from celrec.data.id_map import IdMap
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.registry import describe_embedding, make_embedding
from celrec.errors import CelrecError
from celrec.training.factorisation import Factorisation
from celrec.training.judgement import Judgement
from celrec.training.plan import Plan

_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Run:
    """A recommender with the ids it knows, and all that was noted about its training."""

    model: Factorisation
    known: Interactions
    """A log without rows that holds the ids: what new data are read `like`."""
    users: pl.DataFrame
    """id, interactions, mean_target and, for clustered tables, cluster, in dense order."""
    items: pl.DataFrame
    """The same, and title where there are titles."""
    plan: Plan
    source: dict[str, Any]
    """Where the data came from and how they were split."""
    result: dict[str, Any]
    """What it reached."""


def save_run(
    path: str | Path,
    log: Interactions,
    model: Factorisation,
    plan: Plan,
    judgements: dict[str, list[Judgement]],
    source: dict[str, Any],
    result: dict[str, Any],
) -> None:
    """Write a run folder, whole or not at all; one that stands there is replaced.

    Anything else that stands there is not. `log` is what the model was trained on.
    Holds `config.json`, `result.json`, `judgements.parquet`, `model.safetensors`,
    and `users.parquet` and `items.parquet` with the original ids in dense order,
    their training interactions, mean targets, clusters and titles.
    """
    check_place(path)
    log = log.seen()
    with atomic_folder(Path(path)) as folder:
        tables = {"users": model.users, "items": model.items}
        config = {
            "format": _FORMAT,
            "plan": asdict(plan),
            "source": source,
            "tables": {side: describe_embedding(table) for side, table in tables.items()},
        }
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        (folder / "result.json").write_text(json.dumps(result, indent=2))
        pl.DataFrame(
            [
                {"stage": stage, **asdict(judgement)}
                for stage, several in judgements.items()
                for judgement in several
            ]
        ).write_parquet(folder / "judgements.parquet")
        try:
            save_file(dict(model.state_dict()), folder / "model.safetensors")
        except SafetensorError as error:  # how it tells that the disk is full
            raise CelrecError(f"{path}: cannot write the model ({error}); make room") from error
        sides = (
            ("users", log.user_ids, log.user, log.user_features, model.user_rows),
            ("items", log.item_ids, log.item, log.item_features, model.item_rows),
        )
        for name, ids, dense, features, table in sides:
            counts = np.bincount(dense, minlength=table.num_embeddings)
            sums = np.bincount(dense, log.target, table.num_embeddings)
            columns = {
                "id": ids.ids[: len(counts)],
                "interactions": counts,
                "mean_target": np.where(counts > 0, sums / np.maximum(counts, 1), np.nan),
            }
            if isinstance(table, ClusteredEmbedding):
                columns["cluster"] = table.assignment[:-1].int().numpy()
            if isinstance(table, MixedEmbedding):
                private = table.private(torch.arange(table.num_embeddings)).numpy()
                columns["private"] = private
            if features is not None and "title" in features.columns:
                columns["title"] = features.get_column("title")
            pl.DataFrame(columns).write_parquet(folder / f"{name}.parquet")


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


def load_run(path: str | Path) -> Run:
    """Read what `save_run` wrote."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise CelrecError(f"{path}: not a run folder, there is no config.json in it")
    try:
        config = json.loads((folder / "config.json").read_text())
        result = json.loads((folder / "result.json").read_text())
        if config["format"] != _FORMAT:
            raise CelrecError(f"{path}: written in format {config['format']}, expected {_FORMAT}")
        plan, source = Plan(**config["plan"]), config["source"]
        users, items = (_read_ids(folder / f"{side}.parquet") for side in ("users", "items"))
        nothing = np.empty(0)
        known = Interactions(
            user=nothing.astype(np.int32),
            item=nothing.astype(np.int32),
            target=nothing.astype(np.float32),
            timestamp=None,
            user_ids=IdMap(users.get_column("id")),
            item_ids=IdMap(items.get_column("id")),
        )
        model = Factorisation(
            *(make_embedding(config["tables"][side]) for side in ("users", "items"))  # type: ignore[arg-type]
        )
        model.load_state_dict(load_file(folder / "model.safetensors"))
    except CelrecError:
        raise
    except SafetensorError as error:
        raise CelrecError(f"{path}: damaged model.safetensors ({error}); train again") from error
    except (
        *(OSError, LookupError, TypeError, ValueError, AttributeError, RuntimeError),
        pl.exceptions.PolarsError,
    ) as error:
        problem = str(error).partition("\n")[0]
        raise CelrecError(f"{path}: damaged run folder ({problem}); train again") from error
    return Run(model, known, users, items, plan, source, result)


def _read_ids(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path)
    except pl.exceptions.PolarsError as error:
        problem = str(error).partition("\n")[0]
        raise CelrecError(f"{path}: damaged ({problem}); train again") from error
