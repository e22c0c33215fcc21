"""Gradients and losses of ids that come in bags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from celrec.cel.autograd_evidence import AutogradEvidence, Objective
from celrec.embeddings.clustered_bag import Bags, LooksUpBags
from celrec.errors import CelrecError


class BagEvidence(AutogradEvidence):
    """Evidence for a table whose ids come in bags, one bag a sample.

    A sample counts once for every id in its bag, the others being left as they are:
    the gradient of an id is that of the loss at its vector alone, and its loss under
    another row is that of the sample if all its places in the bag had that row. The
    ids are those of the first lookup with as many bags as losses.

    Sums over ids count a sample as often as it has ids; the interaction of ids of one
    bag that move at the same time is not taken into account.
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
