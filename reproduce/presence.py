"""Which data an experiment is about."""

from __future__ import annotations

from celrec.data.datasets.library import find_dataset
from celrec.evaluation.cell_file import CellFile


def is_present(data: str, known: CellFile) -> bool:
    """Whether data are here, or results on them, which can be shown without."""
    return find_dataset(data) is not None or known.mentions("data", data)
