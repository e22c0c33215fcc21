"""What all solvers of factorisations have in common."""

from __future__ import annotations

from typing import Any

import torch

from celrec.data.interactions import Interactions
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
    """

    def __init__(
        self,
        model: Factorisation,
        log: Interactions,
        bias_l2: float,
        *,
        per_row_start: bool = False,
    ) -> None:
        self.model, self._log, self._per_row_start = model, log, per_row_start
        self.residuals = Residuals(model, log, bias_l2)
        self._collapsed = collapse(log, model.user_rows, model.item_rows)
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

    def evidence(self, side: str) -> DotProductEvidence:
        """Exact, in fused passes."""
        return DotProductEvidence(self.model, self._log, side, self.residuals)

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
