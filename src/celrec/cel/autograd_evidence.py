"""Gradients and losses of ids for any differentiable model."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from celrec.cel.evidence import Evidence
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.errors import CelrecError

Objective: TypeAlias = Callable[[Any], Tensor]
"""From a batch to the loss of each of its samples."""


class AutogradEvidence(Evidence):
    """Evidence from an objective and batches alone.

    The objective is called with the table's vectors replaced: by leaves that
    collect each id's gradient, or by the row of another cluster. A sample counts
    for the id that the table is first asked for with the shape of the losses, axes
    of length one aside, one id a sample; look-ups of other ids, such as a history
    or the worse one of a pair, are left as they are.

    The batches are `data`, if given, else the latest `window` ones that were
    observed. With `model`, evidence is taken in its evaluation mode.
    """

    def __init__(
        self,
        table: ClusteredEmbedding,
        objective: Objective,
        *,
        data: Sequence[Any] | None = None,
        window: int = 64,
        model: nn.Module | None = None,
    ) -> None:
        self._table, self._objective, self._model = table, objective, model
        self._data = data
        self._window: deque[Any] = deque(maxlen=window)
        self._broadcasts: dict[torch.Size, bool] = {}

    def observe(self, batch: object) -> None:
        """Keep the batch, unless all data are known."""
        if self._data is None:
            if batch is None:
                raise CelrecError("batch is missing: give step() the batch that was trained on")
            self._window.append(batch)

    @torch.no_grad()
    def interactions(self) -> Tensor:
        """How many samples of the batches count for each id."""
        counts = torch.zeros(
            self._table.num_embeddings, dtype=torch.int64, device=self._table.weight.device
        )
        with self._evaluating():
            for _, ids, losses in self._samples():
                self._add(counts, ids, torch.ones_like(losses, dtype=torch.int64))
        return counts

    def gradients(self, members: Tensor) -> Tensor:
        """By autograd at the gathered rows, summed over the samples of each id."""
        table = self._table
        total = self._zeros(table.num_embeddings, table.embedding_dim)
        with self._evaluating():
            for batch in self._batches(members):
                looked_up: list[tuple[Tensor, Tensor]] = []

                def leaf(ids: Tensor, kept: list[tuple[Tensor, Tensor]] = looked_up) -> Tensor:
                    rows = table.weight[table.row_of(ids)].detach().requires_grad_()
                    kept.append((ids, rows))
                    return rows

                with torch.enable_grad(), table.probing(leaf):
                    losses = self._objective(batch)
                    total_loss = losses.sum()
                own = _ids_of_samples([ids for ids, _ in looked_up], losses)
                leaves = [rows for ids, rows in looked_up if torch.equal(ids, own)]
                for slope in torch.autograd.grad(total_loss, leaves, allow_unused=True):
                    if slope is not None:
                        self._add(total, own, -slope)
        return total[members]

    @torch.no_grad()
    def losses(self) -> Tensor:
        """One forward pass per cluster, or one for several where the objective broadcasts."""
        table = self._table
        rows = table.weight[: table.num_clusters]
        total = self._zeros(table.num_embeddings, table.num_clusters)
        with self._evaluating():
            for batch, ids, _ in self._samples():
                size = self._at_once(batch, ids)
                parts = zip(torch.split(rows, size), torch.split(total, size, 1), strict=True)
                for some, columns in parts:
                    self._add(columns, ids, self._under(batch, ids, _everywhere(some, ids)).T)
        return total

    @torch.no_grad()
    def own_losses(self) -> Tensor:
        """From the same samples."""
        total = self._zeros(self._table.num_embeddings)
        with self._evaluating():
            for _, ids, losses in self._samples():
                self._add(total, ids, losses)
        return total

    def partners(self, members: Tensor) -> Tensor:
        """An objective does not tell whom an id interacts with."""
        del members
        raise CelrecError(
            "method 'user-2-means' needs to know the partners of an id, which an objective does "
            "not tell; choose another split method"
        )

    def _batches(self, members: Tensor | None = None) -> Iterable[Any]:
        """The batches, or if only these members matter, at least those that hold them."""
        del members
        return self._window if self._data is None else self._data

    def _samples(self) -> Iterator[tuple[Any, Tensor, Tensor]]:
        """Each batch with the id and the loss of each of its samples."""
        for batch in self._batches():
            looked_up: list[Tensor] = []

            def own(ids: Tensor, kept: list[Tensor] = looked_up) -> Tensor:
                kept.append(ids)
                return self._table.weight[self._table.row_of(ids)]

            with self._table.probing(own):
                losses = self._objective(batch)
            yield batch, _ids_of_samples(looked_up, losses), losses

    def _under(self, batch: Any, own: Tensor, vectors: Tensor) -> Tensor:
        """The losses of the samples with others for their own vectors, candidates × samples.

        The vectors are candidates × samples × dim.
        """
        table = self._table

        def other(ids: Tensor) -> Tensor:
            if not torch.equal(ids, own):
                return table.weight[table.row_of(ids)]
            return vectors[0].expand(*ids.shape, -1) if len(vectors) == 1 else vectors

        with table.probing(other):
            losses = self._objective(batch)
        return losses.reshape(len(vectors), own.numel())

    def _at_once(self, batch: Any, own: Tensor) -> int:
        """How many clusters one forward pass may take: several if that gives the same losses."""
        if own.shape not in self._broadcasts:
            self._broadcasts[own.shape] = self._try_broadcasting(batch, own)
        values = own.numel() * self._table.embedding_dim
        return max(1, (1 << 22) // max(values, 1)) if self._broadcasts[own.shape] else 1

    def _try_broadcasting(self, batch: Any, own: Tensor) -> bool:
        # With rows of the table, which may all be equal, wrong shapes could look right.
        pair = torch.rand(2, self._table.embedding_dim, generator=torch.Generator().manual_seed(0))
        pair = pair.to(self._table.weight)
        vectors = _everywhere(pair, own)
        one_by_one = torch.cat([self._under(batch, own, one) for one in torch.split(vectors, 1)])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)  # torch's way to doubt some shapes
                both = self._under(batch, own, vectors)
        except Exception:  # whatever the model says of shapes that it does not know
            return False
        return torch.allclose(both, one_by_one, rtol=1e-4, atol=1e-6)

    def _zeros(self, *shape: int) -> Tensor:
        """To add up in; a sum of many small things does not fit in half a float."""
        weight = self._table.weight
        return weight.new_zeros(shape, dtype=torch.promote_types(weight.dtype, torch.float32))

    def _add(self, total: Tensor, ids: Tensor, values: Tensor) -> None:
        """Add `values`, one row per sample, to the rows of their ids; unseen ids do not count."""
        flat = ids.reshape(-1)
        values = values.reshape(len(flat), *total.shape[1:])
        seen = (flat >= 0) & (flat < self._table.num_embeddings)
        if self._table.padding_idx is not None:
            seen &= flat != self._table.padding_idx
        total.index_add_(0, flat[seen], values[seen].to(total.dtype))

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        modules = [] if self._model is None else list(self._model.modules())
        modes = [module.training for module in modules]
        if self._model is not None:
            self._model.eval()
        try:
            # A compiled model would be compiled again for every vector that is tried out.
            with torch.compiler.set_stance("force_eager"):
                yield
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode  # each its own: some may be frozen in evaluation mode


def _everywhere(rows: Tensor, ids: Tensor) -> Tensor:
    """Each of the rows for all samples, rows × 1 × dim: they broadcast against the samples."""
    return rows.view(len(rows), *(1,) * ids.dim(), -1)


def _ids_of_samples(looked_up: list[Tensor], losses: Tensor) -> Tensor:
    for ids in looked_up:
        if ids.shape == losses.shape:
            return ids
    for ids in looked_up:  # many models look up a column of ids and give a row of predictions
        if ids.squeeze().shape == losses.squeeze().shape:
            return ids
    raise CelrecError(
        "objective: it asks the table for no tensor of ids with the shape "
        f"{tuple(losses.shape)} of its losses; give one loss per sample"
    )
