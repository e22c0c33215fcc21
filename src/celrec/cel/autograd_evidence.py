"""Evidence about members from batches of a model, by autograd: single ids, and bags of ids."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from celrec.cel.evidence import Evidence
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.clustered_bag import Bags, LooksUpBags
from celrec.errors import CelrecError

Objective: TypeAlias = Callable[[Any], Tensor]
"""From a batch to the loss of each of its samples."""


class AutogradEvidence(Evidence):
    """Evidence from an objective and batches, for any model.

    The objective is called with the table's vectors replaced: by leaves that collect each id's
    gradient, or by the row of another cluster. A sample counts for one id: that of the first
    lookup with the shape of the losses, except for axes of length one. Other lookups, such as of
    a history or a negative sample, do not change.

    The batches are `data`, or else the latest `window` observed ones. The `model`, if given, is
    put into evaluation mode meanwhile.
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
        """The number of samples of the batches for each id."""
        counts = torch.zeros(
            self._table.num_embeddings, dtype=torch.int64, device=self._table.weight.device
        )
        with self._evaluating():
            for _, ids, losses in self._samples():
                self._add(counts, ids, torch.ones_like(losses, dtype=torch.int64))
        return counts

    def gradients(self, members: Tensor) -> Tensor:
        """By autograd at the gathered rows, summed over the samples of each id."""
        total = self._zeros(self._table.num_embeddings, self._table.embedding_dim)
        with self._evaluating():
            for batch in self._batches(members):
                lookups: list[tuple[Any, Tensor]] = []

                def leaf(lookup: Any, found: list[tuple[Any, Tensor]] = lookups) -> Tensor:
                    rows = self._rows(self._ids(lookup)).detach().requires_grad_()
                    found.append((lookup, rows))
                    return rows

                with torch.enable_grad(), self._probing(leaf):
                    losses = self._objective(batch)
                    total_loss = losses.sum()
                own = self._of_samples([lookup for lookup, _ in lookups], losses)
                leaves = [rows for lookup, rows in lookups if self._equal(lookup, own)]
                for slope in torch.autograd.grad(total_loss, leaves, allow_unused=True):
                    if slope is not None:
                        self._add(total, self._ids(own), -slope)
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
        total = self._zeros(self._table.num_embeddings)
        with self._evaluating():
            for _, ids, losses in self._samples():
                self._add(total, ids, losses)
        return total

    def _batches(self, members: Tensor | None = None) -> Iterable[Any]:
        """The batches, or if only these members matter, at least those that contain them."""
        return self._window if self._data is None else self._data

    def _samples(self) -> Iterator[tuple[Any, Tensor, Tensor]]:
        """Each batch with the id and the loss of each of its samples; −1 for no id."""
        for batch in self._batches():
            lookups: list[Any] = []

            def unchanged(lookup: Any, found: list[Any] = lookups) -> Tensor:
                found.append(lookup)
                return self._rows(self._ids(lookup))

            with self._probing(unchanged):
                losses = self._objective(batch)
            for ids in self._places(self._of_samples(lookups, losses)):
                yield batch, ids, losses

    # What a lookup is: here a tensor of ids, one a sample; in `BagEvidence` bags of them.

    def _probing(self, probe: Callable[[Any], Tensor]) -> AbstractContextManager[None]:
        """Within it, `probe` makes the vectors of each lookup."""
        return self._table.probing(probe)

    def _ids(self, lookup: Any) -> Tensor:
        return cast(Tensor, lookup)

    def _of_samples(self, lookups: list[Any], losses: Tensor) -> Any:
        """The lookup of the ids that samples count for."""
        return _ids_of_samples(lookups, losses)

    def _equal(self, first: Any, second: Any) -> bool:
        return torch.equal(first, second)

    def _places(self, lookup: Any) -> Iterator[Tensor]:
        """The ids of a lookup, at most one a sample at a time."""
        yield lookup

    def _rows(self, ids: Tensor) -> Tensor:
        return self._table.weight[self._table.row_of(ids)]

    def _under(self, batch: Any, own: Tensor, vectors: Tensor) -> Tensor:
        """The losses of the samples with other vectors for their ids, candidates × samples.

        `own` has the ids, `vectors` is candidates × samples × dim.
        """

        def other(ids: Tensor) -> Tensor:
            if not torch.equal(ids, own):
                return self._rows(ids)
            return vectors[0].expand(*ids.shape, -1) if len(vectors) == 1 else vectors

        with self._table.probing(other):
            losses = self._objective(batch)
        return losses.reshape(len(vectors), own.numel())

    def _at_once(self, batch: Any, own: Tensor) -> int:
        """The number of clusters per forward pass: several if that gives the same losses."""
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
                warnings.simplefilter("error", UserWarning)  # torch warns of some shapes
                both = self._under(batch, own, vectors)
        except Exception:  # whatever the model raises for shapes that it does not know
            return False
        return torch.allclose(both, one_by_one, rtol=1e-4, atol=1e-6)

    def _zeros(self, *shape: int) -> Tensor:
        weight = self._table.weight
        return weight.new_zeros(shape, dtype=torch.promote_types(weight.dtype, torch.float32))

    def _add(self, total: Tensor, ids: Tensor, values: Tensor) -> None:
        """Add `values`, one row per sample, to the rows of their ids; unseen ids are left out."""
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
            # A compiled model would be compiled again for every candidate.
            with torch.compiler.set_stance("force_eager"):
                yield
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode  # each its own: some may be frozen in evaluation mode


def _everywhere(rows: Tensor, ids: Tensor) -> Tensor:
    """Rows × 1 × dim: each row broadcasts against all samples."""
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


class BagEvidence(AutogradEvidence):
    """Evidence for a table whose ids come in bags, one bag a sample.

    A sample counts once for each id in its bag: the gradient of an id is that of the loss at its
    vector, and its loss under another row is that of the sample with this row in all its places,
    while other ids do not change. The ids are those of the first lookup with as many bags as
    losses. Interactions of ids of one bag that move at the same time are neglected.
    """

    def __init__(
        self,
        bags: LooksUpBags,
        objective: Objective,
        *,
        data: Sequence[Any] | None = None,
        window: int = 64,
        model: nn.Module | None = None,
    ) -> None:
        super().__init__(bags.table, objective, data=data, window=window, model=model)
        self._bags = bags

    def _probing(self, probe: Callable[[Any], Tensor]) -> AbstractContextManager[None]:
        return self._bags.probing(probe)

    def _ids(self, lookup: Bags) -> Tensor:
        return lookup.ids

    def _of_samples(self, lookups: list[Bags], losses: Tensor) -> Bags:
        for bags in lookups:
            if bags.count == losses.numel():
                return bags
        raise CelrecError(
            f"objective: it asks the table for no {losses.numel()} bags, as many as it has losses; "
            "give one loss per sample"
        )

    def _equal(self, first: Bags, second: Bags) -> bool:
        return torch.equal(first.ids, second.ids) and torch.equal(first.bag, second.bag)

    def _places(self, lookup: Bags) -> Iterator[Tensor]:
        """The first id of every bag, then the second, …, each id once; −1 where there is none."""
        pairs = torch.unique(torch.stack([lookup.bag, lookup.ids]), dim=1)
        bag, ids = pairs
        sizes = torch.bincount(bag, minlength=lookup.count)
        place = torch.arange(len(bag), device=bag.device) - (sizes.cumsum(0) - sizes)[bag]
        for turn in range(int(sizes.max()) if len(sizes) else 0):
            chosen = place == turn
            yield torch.full_like(sizes, -1).index_copy(0, bag[chosen], ids[chosen])

    def _under(self, batch: Any, own: Tensor, vectors: Tensor) -> Tensor:
        """As in `AutogradEvidence`; `own` has one id of each bag, the others stay as they are."""
        first: list[Bags] = []

        def other(bags: Bags) -> Tensor:
            usual = self._rows(bags.ids)
            if bags.count != len(own):
                return usual
            first.append(bags)
            if not self._equal(bags, first[0]):
                return usual
            named = (bags.ids == own[bags.bag]).unsqueeze(-1)
            tried = vectors.expand(len(vectors), len(own), -1)  # rows for all bags, or one each
            tried = tried[0] if len(tried) == 1 else tried
            return torch.where(named, tried.index_select(-2, bags.bag), usual)

        with self._bags.probing(other):
            losses = self._objective(batch)
        return losses.reshape(len(vectors), len(own))
