"""Alternating least squares with clusters by the posterior quadratics of their members."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from celrec.cel.evidence import Evidence
from celrec.cel.quadratics import QuadraticEvidence, Quadratics
from celrec.config.offline import LeastSquaresConfig
from celrec.data.interactions import Interactions
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.errors import CelrecError
from celrec.offline.least_squares import PASSES, AlternatingLeastSquares
from celrec.recommender.model import Model
from celrec.runtime.communicator import LOCAL, Communicator


class PosteriorClusters(AlternatingLeastSquares):
    """Clusters for the ids of a factorisation, begun from a fit with a row for each id.

    The expected loss of an id depends on its vector v only by its quadratic

        L_j(v) = ½·vᵀ·H_j·v − q_jᵀ·v,    H_j = Σ E[a·aᵀ]/σ² + Λ,    q_j = Σ r·E[a]/σ² + Λ·mean,

    over its interactions with partners a and residual targets r, with the prior N(mean, Λ⁻¹) of
    ids with private rows. Rows of clusters minimise the sum over their members; splits and
    reassignments use L_j (`QuadraticEvidence`), without a pass over the interactions. The partner
    table is solved for with E[v·vᵀ] = v·vᵀ + H_j⁻¹, which includes the uncertainty of ids.

    `start` fits the full tables for `full_sweeps` sweeps. Then, as long as clusters split, a
    step solves for the rows of clusters alone; after that it is a sweep over all.
    """

    def __init__(
        self,
        model: Model,
        log: Interactions,
        how: LeastSquaresConfig,
        communicator: Communicator = LOCAL,
    ) -> None:
        self._tables = {
            side: table
            for side, table in model.row_tables.items()
            if isinstance(table, ClusteredEmbedding)
        }
        super().__init__(_with_full_tables(model), log, how, communicator)
        if self.communicator.size > 1 and "users" in self._tables:
            raise CelrecError(
                f"{self.communicator.size} processes cannot cluster users by their posteriors; "
                "take side 'items', or one process"
            )
        counts = {"users": log.user_counts, "items": log.item_counts}
        self._evidence = {
            side: QuadraticEvidence(
                table, self.communicator.all_reduce(torch.from_numpy(counts[side]))
            )
            for side, table in self._tables.items()
        }
        self._clusters = dict.fromkeys(self._tables, 0)

    @torch.no_grad()
    def start(self, seed: int) -> None:
        """Fit a row for each id, then the rows of the first clusters."""
        super().start(seed)
        for _ in range(self.how.full_sweeps):
            super().step()
        for side in self._tables:
            self._update(side)

    @torch.no_grad()
    def step(self) -> float:
        """Solve for the rows of clusters while they split; else sweep over all."""
        if self._growing():
            for side in self._tables:
                self._solve_rows(side)
            return self._statistics.loss()
        for side in self._tables:
            self._solve_rows(side)
        return super().step()

    def _growing(self) -> bool:
        """Whether any table has split since the last step, or may do so for the first time."""
        before, now = self._clusters, {s: t.num_clusters for s, t in self._tables.items()}
        self._clusters = now
        return any(
            before[side] != now[side] and (before[side] or now[side] < table.max_clusters)
            for side, table in self._tables.items()
        )

    def evidence(self, side: str) -> Evidence:
        """By quadratics."""
        return self._evidence[side]

    @torch.no_grad()
    def meet(self) -> None:
        """The rows of clusters become the best for the members that they have now."""
        super().meet()
        for side in self._tables:
            self._solve_rows(side)

    def _solve(self, side: str) -> float:
        return self._update(side) if self._started(side) else super()._solve(side)

    def _started(self, side: str) -> bool:
        return side in self._tables and self._evidence[side].members is not None

    def _learn_prior(self, side: str) -> None:
        if not self._started(side):  # else `_update` has done so
            super()._learn_prior(side)

    def _update(self, side: str) -> float:
        """New quadratics and rows for one side; the squared error that is expected after."""
        super()._solve(side)
        super()._learn_prior(side)
        full = self.model.row_tables[side].weight.detach()
        covariances = self._moments[side] - full[:, :, None] * full[:, None, :]
        parts = [self._equations(side, rows) for rows in self._batches(side)]
        data, right = (torch.cat(part) for part in zip(*parts, strict=True))
        noise, precision = self.how.strength * self._noise, self._precisions[side]
        self._evidence[side].members = Quadratics(
            data[:-1].double() / noise + precision,
            right[:-1].double() / noise + precision @ self._means[side].double(),
        )
        self._solve_rows(side)
        moments = full[:, :, None] * full[:, None, :]
        self._moments[side] = moments.add_(covariances) if self.how.uncertainty else moments
        explained = float((data * moments).sum(dtype=torch.float64))
        return self._statistics.squares + explained - 2 * float((right * full).sum())

    def _equations(self, side: str, rows: slice) -> tuple[Tensor, Tensor]:
        other = "items" if side == "users" else "users"
        known = self._moments_of(other, self.model.row_tables[other])
        return self._statistics.normal_equations(side, known, rows)

    def _solve_rows(self, side: str) -> None:
        """The best rows for the clusters as they are; the full table has them for each id."""
        table, members = self._tables[side], self._evidence[side].members
        assert members is not None  # noqa: S101  (`start` has made them)
        assignment, clusters = table.assignment[:-1].long(), table.num_clusters
        if self.how.non_negative:
            rows = table.weight.detach()[:clusters].double()
            rows = members.non_negative_rows(assignment, rows, PASSES)
        else:
            rows = members.rows(assignment, clusters)
        table.weight[:clusters] = rows.to(table.weight)
        self.model.row_tables[side].weight.copy_(table.weight[table.assignment.long()])

    @torch.no_grad()
    def deviations(self) -> dict[str, Tensor]:
        """See the base class; of clusters, how uncertain their rows are."""
        found = super().deviations()
        for side, table in self._tables.items():
            members = self._evidence[side].members
            assert members is not None  # noqa: S101  (`start` has made them)
            covariances = members.row_covariances(table.assignment[:-1].long(), table.num_clusters)
            found[side] = torch.linalg.cholesky(covariances).float()
        return found

    def state_dict(self) -> dict[str, Any]:
        """Also the quadratics, and how many clusters there were at the last step."""
        members = {
            side: (evidence.members.curvature, evidence.members.linear)
            for side, evidence in self._evidence.items()
            if evidence.members is not None
        }
        full = {side: self.model.row_tables[side].weight for side in self._tables}
        return {
            **super().state_dict(),
            "members": members,
            "full": full,
            "clusters": self._clusters,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for side, (curvature, linear) in state["members"].items():
            self._evidence[side].members = Quadratics(curvature, linear)
        for side, weight in state["full"].items():
            self.model.row_tables[side].weight.detach().copy_(weight)
        self._clusters = dict(state["clusters"])


def _with_full_tables(model: Model) -> Model:
    """The same model, users, items and biases, with a row for each id of a clustered table."""
    return Model(_full(model.users), _full(model.items), model.model)


def _full(table: Embedding) -> Embedding:
    """The table, or one with a row for each id in the place of clusters; biases are the same."""
    if isinstance(table, BiasedEmbedding):
        rows = _full(table.rows)
        if rows is table.rows:
            return table
        biased = BiasedEmbedding(rows)
        biased.bias = table.bias
        return biased
    if isinstance(table, ClusteredEmbedding):
        return FullEmbedding(table.num_embeddings, table.embedding_dim)
    return table
