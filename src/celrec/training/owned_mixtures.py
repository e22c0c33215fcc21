"""Mixtures of rows, whose evidence is spread over processes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from celrec.clustering.ranks import Ranks
from celrec.errors import CelrecError
from celrec.training.batch import Batch
from celrec.training.online_side import Judge, Tangent
from celrec.training.owned_side import OwnedSide
from celrec.training.routes import Routes
from celrec.training.soft_side import SoftSide


class OwnedMixtures(OwnedSide):
    """Rows are everywhere, so owners are asked for evidence alone, of each id once.

    What a row learns from the events here is summed here, however often an id is looked up, as
    in histories. Owners hear of the events only, by their tangents, in the order of time.
    """

    def __init__(self, inner: SoftSide, ranks: Ranks) -> None:
        super().__init__(inner, ranks)
        self._mixtures = inner
        self._weights = torch.empty(0)
        self._places = torch.empty(0, dtype=torch.int64)

    def lookup(self, ids: Tensor) -> Tensor:
        """See `OnlineSide`."""
        different, self._places = torch.unique(ids, return_inverse=True)
        routes, asked = self.asked(different)
        evidence = routes.back(self._mixtures.evidence_of(asked))
        self._weights = self._mixtures.weighed(evidence)
        vectors = self._weights @ self._mixtures.rows
        return vectors[self._places]

    def pull(self, gradients: Tensor) -> Tensor:
        """See `OnlineSide`: as `SoftSide`, by the different ids."""
        counted = torch.cat([gradients, gradients.new_ones(len(gradients), 1)], 1)
        sums = counted.new_zeros(len(self._weights), counted.shape[1])
        sums.index_add_(0, self._places, counted)
        return torch.from_numpy(self._weights.numpy().T @ sums.numpy())

    def tell_owners(self, batch: Batch, gradients: Tensor, tangent: Tangent | None) -> None:
        """Nothing yet: what rows learn is summed here."""

    def observe(
        self,
        batch: Batch,
        ids: Tensor,
        vectors: Mapping[str, Tensor],
        judge: Judge,
        *,
        again: bool,
        tangent: Tangent | None = None,
    ) -> None:
        """Tell the owners of the events, who take notice of them."""
        del vectors
        if tangent is None or batch.moment is None:
            raise CelrecError(
                f"{self._ranks.size} processes cannot learn a model with several outputs together; "
                "take one process"
            )
        size = self._ranks.size
        whole = torch.stack([ids // size, batch.moment], 1)
        numbers = torch.stack([batch.target, tangent.output], 1)
        parts = [whole.view(torch.float32), numbers, tangent.slope, tangent.vector]  # whole as bits
        told = Routes(ids % size, self._ranks).there(torch.cat(parts, 1))
        known = told[:, :4].contiguous().view(torch.int64)
        # Evidence has limits, so that it matters what comes first.
        order = torch.argsort(known[:, 1])
        told, known = told[order], known[order].T.contiguous()
        target, output = told[:, 4:6].T.contiguous()
        slope, vector = (part.contiguous() for part in told[:, 6:].chunk(2, 1))
        if len(order):
            events = Batch(known[0], known[0], target, moment=known[1])
            of_all = Tangent(output, slope, vector)
            self.inner.observe(events, known[0], {}, judge, again=again, tangent=of_all)
