"""Gradients and losses of ids that come in bags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from celrec.cel.autograd_evidence import AutogradEvidence, Objective
from celrec.embeddings.clustered_bag import Bags, LooksUpBags
from celrec.errors import CelrecError


class BagEvidence(AutogradEvidence):
    """Evidence for a table whose ids come in bags, one bag a sample.

    A sample counts once for every id in its bag, and each id is judged with the
    others left as they are: its gradient is that of the loss by its vector alone,
    and its loss under another row is that of the sample if all its places in the
    bag had that row. The first look-up with as many bags as losses is the samples'
    own.

    What is summed over ids counts a sample as often as it has ids; and members of
    one bag that move at once are not judged together.
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

    def gradients(self, members: Tensor) -> Tensor:
        """By autograd at the gathered rows, summed over all places of each id."""
        total = self._zeros(self._table.num_embeddings, self._table.embedding_dim)
        with self._evaluating():
            for batch in self._batches(members):
                looked_up: list[tuple[Bags, Tensor]] = []

                def leaf(bags: Bags, kept: list[tuple[Bags, Tensor]] = looked_up) -> Tensor:
                    rows = self._rows(bags.ids).detach().requires_grad_()
                    kept.append((bags, rows))
                    return rows

                with torch.enable_grad(), self._bags.probing(leaf):
                    losses = self._objective(batch)
                    total_loss = losses.sum()
                own = _bags_of_samples([bags for bags, _ in looked_up], losses)
                leaves = [rows for bags, rows in looked_up if _equal(bags, own)]
                for slope in torch.autograd.grad(total_loss, leaves, allow_unused=True):
                    if slope is not None:
                        self._add(total, own.ids, -slope)
        return total[members]

    def _samples(self) -> Iterator[tuple[Any, Tensor, Tensor]]:
        """Each batch as often as its largest bag has ids: with the first of each bag, and so on."""
        for batch in self._batches():
            looked_up: list[Bags] = []

            def own(bags: Bags, kept: list[Bags] = looked_up) -> Tensor:
                kept.append(bags)
                return self._rows(bags.ids)

            with self._bags.probing(own):
                losses = self._objective(batch)
            bags = _bags_of_samples(looked_up, losses)
            for ids in _one_of_each(bags):
                yield batch, ids, losses

    def _under(self, batch: Any, own: Tensor, vectors: Tensor) -> Tensor:
        """With others for the vectors of that id of each bag which is named in `own`."""
        first: list[Bags] = []

        def other(bags: Bags) -> Tensor:
            usual = self._rows(bags.ids)
            if bags.count != len(own):
                return usual
            first.append(bags)
            if not _equal(bags, first[0]):
                return usual
            named = (bags.ids == own[bags.bag]).unsqueeze(-1)
            tried = vectors.expand(len(vectors), len(own), -1)  # rows for all bags, or one each
            tried = tried[0] if len(tried) == 1 else tried
            return torch.where(named, tried.index_select(-2, bags.bag), usual)

        with self._bags.probing(other):
            losses = self._objective(batch)
        return losses.reshape(len(vectors), len(own))

    def _rows(self, ids: Tensor) -> Tensor:
        return self._table.weight[self._table.row_of(ids)]


def _bags_of_samples(looked_up: list[Bags], losses: Tensor) -> Bags:
    for bags in looked_up:
        if bags.count == losses.numel():
            return bags
    raise CelrecError(
        f"objective: it asks the table for no {losses.numel()} bags, as many as it has losses; "
        "give one loss per sample"
    )


def _equal(first: Bags, second: Bags) -> bool:
    return torch.equal(first.ids, second.ids) and torch.equal(first.bag, second.bag)


def _one_of_each(bags: Bags) -> Iterator[Tensor]:
    """The first id of every bag, then the second, and so on, −1 where there is none; each once."""
    pairs = torch.unique(torch.stack([bags.bag, bags.ids]), dim=1)
    bag, ids = pairs
    sizes = torch.bincount(bag, minlength=bags.count)
    place = torch.arange(len(bag), device=bag.device) - (sizes.cumsum(0) - sizes)[bag]
    for turn in range(int(sizes.max()) if len(sizes) else 0):
        chosen = place == turn
        yield torch.full_like(sizes, -1).index_copy(0, bag[chosen], ids[chosen])
