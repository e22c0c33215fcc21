"""What moves the rows of a factorisation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch.optim import Optimizer

from celrec.data.interactions import Interactions
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.shared_rows import SharedRows
from celrec.training.collapse import collapse
from celrec.training.factorisation import Factorisation
from celrec.training.residuals import Residuals


class Solver(ABC):
    """Steps that lower the squared error of a factorisation on a log.

    Rows of a mixed table are anchored where they are when the solver is made, so
    that a private row can be kept near the shared row that it comes from.
    """

    optimizer: Optimizer | None = None
    """Where state about single rows is kept that a split has to copy, if anywhere."""

    def __init__(self, model: Factorisation, log: Interactions, bias_l2: float) -> None:
        self.model = model
        self.residuals = Residuals(model, log, bias_l2)
        self._collapsed = collapse(log, model.user_rows, model.item_rows)
        self._seen_version = 0
        self._anchors = {
            side: table.weight.detach().clone()
            for side, table in self._tables().items()
            if isinstance(table, MixedEmbedding)
        }

    @abstractmethod
    def step(self) -> float:
        """Take one step; the squared error before it, summed, without penalties."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on and the model does not hold."""
        return {"anchors": self._anchors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        self._anchors = state["anchors"]
        self.residuals.refresh()
        self._follow_residuals()

    def _tables(self) -> dict[str, SharedRows]:
        return {"users": self.model.user_rows, "items": self.model.item_rows}

    def _fit_biases(self) -> None:
        self.residuals.fit_biases()
        self._follow_residuals()

    def _follow_residuals(self) -> None:
        if self.residuals.version != self._seen_version:
            self._collapsed.retarget(self.residuals.target)
            self._seen_version = self.residuals.version
