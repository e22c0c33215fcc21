"""What their latest events tell of ids in clusters."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.training._online_kernels import (
    KNOWN_LOSSES,
    add_tangent_pulls,
    choose_by_tangents,
    draw_candidates,
)
from celrec.training.batch import Batch
from celrec.training.kept_events import KeptEvents
from celrec.training.moving import Moving
from celrec.training.online_side import Judge

_NEAR = 2048  # rows that a cache has room for


class LatestEvidence:
    """Which cluster is best for an id, and where it would like the row of its own to go.

    Where the loss is one that kernels know, and outputs are numbers, events are judged by their
    tangents: a look at each tells of all clusters.
    """

    def __init__(
        self, side: str, table: ClusteredEmbedding, kept: KeptEvents, moving: Moving
    ) -> None:
        self._side, self._table, self._kept, self._moving = side, table, kept, moving

    def best(
        self, ids: NDArray[np.int64], mean: Tensor, moment: int, judge: Judge
    ) -> NDArray[np.int64]:
        """The best cluster for each id, of its own and some that `moment` draws at random.

        That is argmin_k Σ_{latest events} loss(row k) + prior/2·‖row k − mean‖². Of very many
        clusters, all ids draw from the same few thousand, others in each moment: their rows are
        fetched once, so that it takes no longer the more clusters there are.
        """
        owner, batch = self._kept.replay(ids)
        moving, others = self._moving, self._others(moment)
        assignment = self._table.assignment.numpy()
        tangent = None
        if moving.by_tangent and judge.kind in KNOWN_LOSSES:
            tangent = judge.tangent(self._side, batch)
        if tangent is None:
            own = assignment[ids].astype(np.int64)
            drawn = draw_candidates(own, len(others), moving.candidates, moment)
            drawn[1:] = others[drawn[1:]]
            return self._best_of(drawn, mean, owner, batch, judge)
        weight = self._table.weight.detach().numpy()
        return choose_by_tangents(
            ids,
            assignment,
            weight,
            others,
            weight if len(others) == self._table.num_clusters else weight[others],
            moving.candidates,
            moment,
            mean.numpy(),
            moving.prior,
            owner,
            tangent.output.numpy(),
            tangent.slope.numpy(),
            tangent.vector.numpy(),
            batch.target.numpy(),
            judge.kind == "cross-entropy",
        )

    def _others(self, moment: int) -> NDArray[np.int64]:
        """The clusters that ids draw from at a moment: all, or some that are drawn themselves."""
        clusters = self._table.num_clusters
        if clusters <= _NEAR:
            return np.arange(clusters)
        return draw_candidates(np.zeros(1, np.int64), clusters, _NEAR, ~moment)[1:, 0]

    def _best_of(
        self,
        drawn: NDArray[np.int64],
        mean: Tensor,
        owner: NDArray[np.int64],
        batch: Batch,
        judge: Judge,
    ) -> NDArray[np.int64]:
        """The same by all outputs of the model, for each event and each cluster."""
        rows = self._table.weight.detach()[torch.from_numpy(drawn)]  # (candidates, ids, dim)
        losses = judge.losses(self._side, batch, rows[:, torch.from_numpy(owner)])
        total = self._moving.prior / 2 * (rows - mean).square().sum(-1)
        total.index_add_(1, torch.from_numpy(owner), losses)
        best: NDArray[np.int64] = drawn[total.argmin(0).numpy(), np.arange(drawn.shape[1])]
        return best

    def pulls(self, ids: NDArray[np.int64], judge: Judge) -> NDArray[np.float64]:
        """(ids, dim): −∂/∂row Σ_{latest events} loss, at the row that each id has now."""
        pulls = np.zeros((len(ids), self._table.embedding_dim))
        owner, batch = self._kept.replay(ids)
        tangent = judge.tangent(self._side, batch) if judge.kind in KNOWN_LOSSES else None
        if tangent is None:
            np.subtract.at(pulls, owner, judge.gradients(self._side, batch).numpy())
            return pulls
        add_tangent_pulls(
            pulls,
            ids,
            self._table.assignment.numpy(),
            self._table.weight.detach().numpy(),
            owner,
            tangent.output.numpy(),
            tangent.slope.numpy(),
            tangent.vector.numpy(),
            batch.target.numpy(),
            judge.kind == "cross-entropy",
        )
        return pulls
