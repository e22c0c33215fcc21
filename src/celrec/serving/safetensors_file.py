"""Models as their numbers, and how to put them together again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from celrec.errors import CelrecError
from celrec.training.building import describe_model, rebuild_model
from celrec.training.model import Model
from celrec.training.plan import Plan

_ABOUT, _PLAN, _MODEL = "celrec", "plan", "model"  # the keys of the metadata


def write_safetensors(path: Path, model: Model, plan: Plan, about: str) -> None:
    """Write all that a model has learned, the clusters of ids too, and how it is built.

    The metadata of the file are `celrec`, which is `about`, and `plan` and `model` for
    `read_safetensors`.
    """
    metadata = {
        _ABOUT: about,
        _PLAN: json.dumps(asdict(plan)),
        _MODEL: json.dumps(describe_model(model)),
    }
    try:
        save_file(dict(model.state_dict()), path, metadata)
    except SafetensorError as error:  # how it tells that the disk is full
        raise CelrecError(f"{path}: cannot write the model ({error}); make room") from error


def read_safetensors(path: str | Path) -> Model:
    """The model that `write_safetensors` wrote, from this file alone.

    What users did before is not in it: give it to a `Scorer`, for models that look at it.

    >>> from tempfile import mkdtemp
    >>> from celrec.embeddings.full import FullEmbedding
    >>> from celrec.training.factorisation import Factorisation
    >>> path = Path(mkdtemp(), "model.safetensors")
    >>> model = Factorisation(FullEmbedding(2, 3), FullEmbedding(5, 3))
    >>> write_safetensors(path, model, Plan(embedding="full", rank=3), "{}")
    >>> bool((read_safetensors(path).items.weight == model.items.weight).all())
    True
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        model = rebuild_model(Plan(**json.loads(metadata[_PLAN])), json.loads(metadata[_MODEL]))
        model.load_state_dict(load_file(path))
    except FileNotFoundError as error:
        raise CelrecError(f"{path}: no such file") from error
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RuntimeError) as error:
        problem = str(error).partition("\n")[0]
        raise CelrecError(
            f"{path}: no model that celrec exported ({problem}); export it again"
        ) from error
    return model
