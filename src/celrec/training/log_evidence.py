"""Evidence for the ids of any recommender, from a sample of its log."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from celrec.clustering.autograd_evidence import AutogradEvidence, Objective
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.training.batch import Batch
from celrec.training.grouped import Grouped

_SAMPLES = 4096


class LogEvidence(AutogradEvidence):
    """Gradients and losses by autograd, on at most `per_id` interactions of each id.

    The interactions are drawn anew each time, so that no id is judged by the same few
    again and again. To look at some members only costs only theirs.
    """

    def __init__(
        self,
        table: ClusteredEmbedding,
        objective: Objective,
        model: nn.Module,
        log: Interactions,
        side: str,
        take: Callable[[Tensor], Batch],
        *,
        per_id: int = 30,
        seed: int = 0,
    ) -> None:
        """`take` gives the samples of these rows of the log, which holds no unseen ids."""
        super().__init__(table, objective, data=(), model=model)
        self._group, self._take, self._per_id = Grouped(log, side), take, per_id
        self._rng = np.random.default_rng(seed)

    def interactions(self) -> Tensor:
        """From the whole log."""
        return torch.from_numpy(self._group.counts)

    def _batches(self, members: Tensor | None = None) -> Iterator[Batch]:
        counts, starts = self._group.counts, self._group.starts
        ids = np.arange(len(counts)) if members is None else members.numpy()
        taken = np.minimum(counts[ids], self._per_id)
        ends = np.cumsum(taken)
        place = np.arange(int(taken.sum())) - np.repeat(ends - taken, taken)
        # Every stride-th interaction from a random one on, around the corner: no two are the same.
        owner = np.repeat(ids, taken)
        shift = np.repeat(self._rng.integers(np.maximum(counts[ids], 1)), taken)
        stride = np.maximum(counts[owner] // self._per_id, 1)
        chosen = starts[owner] + (shift + place * stride) % counts[owner]
        rows = torch.from_numpy(self._group.order[chosen])
        for some in torch.split(rows, _SAMPLES):
            yield self._take(some)
