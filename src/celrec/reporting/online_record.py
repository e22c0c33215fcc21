"""How an online run predicted each event before it learned it."""

from __future__ import annotations

from pathlib import Path

from celrec.errors import CelrecError
from celrec.evaluation.prequential import Measured, Prequential
from celrec.training.checkpoint_folder import CheckpointFolder
from celrec.training.state_file import load_state

_STATE = "training.safetensors"


def online_record(folder: Path) -> dict[str, Measured] | None:
    """What the run noted with its last checkpoint, by slice; None if it noted nothing."""
    found = CheckpointFolder(folder).latest()
    if found is None:
        return None
    metrics = Prequential()
    try:
        metrics.load_state_dict(load_state(found.folder / _STATE)["notes"])
    except (CelrecError, LookupError, TypeError, AttributeError):
        return None  # a run that somebody else's program has made need not note such things
    return metrics.overall() if metrics.events else None
