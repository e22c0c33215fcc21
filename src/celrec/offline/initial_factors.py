"""The first rows and biases of a matrix factorisation."""

from __future__ import annotations

import torch

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import SharedRows
from celrec.recommender.model import Model
from celrec.recommender.vectors import Materialised

_SMALL = 0.1  # the deviation of factors where biases explain most of a rating


@torch.no_grad()
def initialise_factors(model: Model, generator: torch.Generator, *, per_row: bool = False) -> None:
    """Draw the rows: the paper's non-negative start, or small normal ones with biases.

    Without biases, a full table of |N(0, 1)| is divided by its largest value, or with `per_row`
    each row by its own; a shared row is the mean over its ids. With biases, rows are drawn from
    N(0, 0.1²) and biases are 0. Tables whose vectors are computed from several rows keep the
    parameters that they were made with, without biases the absolute values of those.
    """
    biases = model.biases
    for table in model.row_tables.values():
        if isinstance(table, Materialised):
            if not biases:
                for parameter in table.source.non_negative_parameters():
                    parameter.abs_()
            table.refresh()
        elif biases:
            table.weight.normal_(0, _SMALL, generator=generator)
        else:
            _start_non_negative(table, generator, per_row)
    for bias in biases or ():
        bias.zero_()


def _start_non_negative(table: SharedRows, generator: torch.Generator, per_row: bool) -> None:
    full = torch.randn(table.num_embeddings, table.embedding_dim, generator=generator).abs()
    full /= full.amax(1, keepdim=True) if per_row else full.max()
    rows = table.row_of(torch.arange(table.num_embeddings))
    sums = torch.zeros_like(table.weight).index_add_(0, rows, full)
    sizes = torch.bincount(rows, minlength=len(sums)).clamp_(min=1)
    table.weight.copy_(sums / sizes[:, None])
    if not isinstance(table, ClusteredEmbedding):  # rows that no id has, for unseen ids
        unused = torch.bincount(rows, minlength=len(sums)) == 0
        table.weight[unused] = full.mean(0)
