"""What all solvers of factorisations have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.clustering.distributed_evidence import DistributedEvidence
from celrec.clustering.evidence import Evidence
from celrec.clustering.ranks import Ranks
from celrec.data.interactions import Interactions
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.training.collapse import collapse
from celrec.training.dot_product_evidence import DotProductEvidence
from celrec.training.factorisation import Factorisation
from celrec.training.residuals import Residuals
from celrec.training.solver import Solver


class FactorisationSolver(Solver):
    """Steps that lower the squared error of a factorisation on a log.

    Rows of a mixed table are anchored where they are when the solver is made, so
    that a private row can be kept near the shared row that it comes from.

    Of several `ranks`, each has the interactions of its own users, which are next to each
    other; all have all tables.
    """

    def __init__(
        self,
        model: Factorisation,
        log: Interactions,
        bias_l2: float,
        *,
        per_row_start: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        self.model, self._log, self._per_row_start = model, log, per_row_start
        self.ranks = ranks or Ranks.alone()
        self.residuals = Residuals(model, log, bias_l2, self.ranks)
        self._cuts = self._cut_users()
        rows = None if self._cuts is None else slice(*self._cuts[self.ranks.rank :][:2].tolist())
        self._collapsed = collapse(log, model.user_rows, model.item_rows, self.ranks, rows)
        self._seen_version = 0
        self._anchors = {
            side: table.weight.detach().clone()
            for side, table in model.tables.items()
            if isinstance(table, MixedEmbedding)
        }

    def start(self, seed: int) -> None:
        """The first rows, and biases of 0 but for the mean."""
        generator = torch.Generator().manual_seed(seed)
        self.model.initialise(generator, per_row=self._per_row_start)
        self.residuals.start()

    def _cut_users(self) -> NDArray[np.int64] | None:
        """Where the rows of the users of each process begin, and their number.

        None if users do not have rows of their own.
        """
        users = self.model.user_rows
        counts = self.ranks.total(torch.from_numpy(self._log.user_counts))
        if not isinstance(users, FullEmbedding):
            return None
        cuts = self.ranks.cuts(counts.numpy())
        cuts[-1] = users.num_rows  # the last has that of unseen users
        return cuts

    def evidence(self, side: str) -> Evidence:
        """Exact, in fused passes."""
        own = DotProductEvidence(self.model, self._log, side, self.residuals)
        return own if self.ranks.size == 1 else DistributedEvidence(own, self.ranks)

    def loss(self, log: Interactions) -> float:
        """The mean squared error."""
        if not len(log):
            return float("nan")
        return float((self.model.predict(log) - torch.tensor(log.target)).square().mean())

    def state_dict(self) -> dict[str, Any]:
        """The anchors."""
        return {"anchors": self._anchors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        self._anchors = state["anchors"]
        self.residuals.refresh()
        self._follow_residuals()

    def _fit_biases(self) -> None:
        self.residuals.fit_biases()
        self._follow_residuals()

    def _follow_residuals(self) -> None:
        if self.residuals.version != self._seen_version:
            self._collapsed.retarget(self.residuals.target)
            self._seen_version = self.residuals.version
