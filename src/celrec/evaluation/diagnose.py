"""All diagnostics of a trained recommender's clusters."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.data.interactions import Interactions
from celrec.evaluation.cluster_diagnostics import ClusterDiagnostics
from celrec.evaluation.eigenvalue_ratio import eigenvalue_ratio
from celrec.training.dot_product_evidence import DotProductEvidence
from celrec.training.factorisation import Factorisation
from celrec.training.model import Model, item_rows_of


@torch.no_grad()
def diagnose(model: Model, log: Interactions) -> dict[str, Any]:
    """The `ClusterDiagnostics` of the items' rows, and the median eigenvalue ratio.

    Rows that ids have alone count as clusters too. The ratio is that of the
    gradients in each row that is shared by more ids than it has dimensions: with
    fewer, something always stands out. Rows whose ids pull in one direction only,
    or not at all, have none. None if there are no such rows, and for networks.
    """
    table = item_rows_of(model)
    everyone = torch.arange(table.num_embeddings)
    # Only rows that some item has, numbered without gaps.
    used, rows = np.unique(table.row_of(everyone).numpy(), return_inverse=True)
    genres = None
    if log.item_features is not None and "genres" in log.item_features.columns:
        genres = log.item_features.get_column("genres")
    found = ClusterDiagnostics.of(table.weight[torch.from_numpy(used)], rows, log, genres)
    ratio = _median_ratio(model, log, rows) if isinstance(model, Factorisation) else None
    return {**asdict(found), "eigenvalue_ratio": ratio}


def _median_ratio(model: Factorisation, log: Interactions, rows: NDArray[np.int64]) -> float | None:
    evidence = DotProductEvidence(model, log, "items")
    everyone = torch.arange(len(rows))
    large = np.flatnonzero(np.bincount(rows) > model.item_rows.embedding_dim)
    ratios = [
        eigenvalue_ratio(evidence.gradients(everyone[torch.from_numpy(rows == row)]))
        for row in large
    ]
    ratios = [ratio for ratio in ratios if math.isfinite(ratio)]
    return float(np.median(ratios)) if ratios else None
