"""Tables whose ids do not have one row each, learned online."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from celrec.embeddings.embedding import Embedding
from celrec.training.online_side import OnlineSide
from celrec.training.row_descent import Descending

_ADAPT_EVERY = 100  # batches


class ComposedSide(OnlineSide):
    """A table that is differentiated through: hashed codes, mixtures, products and the like.

    Its gradients are means over the batch, since there is no row whose lookups could be
    counted, and all of its parameters move at once.
    """

    def __init__(self, name: str, table: Embedding, how: Descending) -> None:
        super().__init__(name, table)
        self._how, self._steps = how, 0
        parameters, rate = list(table.parameters()), how.learning_rate
        self._optimizer: torch.optim.Optimizer
        if how.rule == "sgd":
            self._optimizer = torch.optim.SGD(parameters, lr=rate, weight_decay=how.l2)
        else:
            self._optimizer = torch.optim.Adagrad(
                parameters,
                lr=rate,
                weight_decay=how.l2,
                initial_accumulator_value=how.first_square,
            )
        self._vectors = torch.empty(0)

    def lookup(self, ids: Tensor) -> Tensor:
        """See `OnlineSide`."""
        with torch.enable_grad():
            self._vectors = self.table(ids)
        return self._vectors.detach()

    def learn(self, gradients: Tensor) -> None:
        """See `OnlineSide`."""
        self._optimizer.zero_grad()
        scale = len(gradients) if self._how.average else 1
        self._vectors.backward(gradients / scale)  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._steps += 1
        if self._steps % _ADAPT_EVERY == 0:
            self.table.adapt(self._optimizer)
        if self._how.non_negative:
            for parameter in self.table.non_negative_parameters():
                parameter.data.clamp_(min=0)

    def grow(self, ids: int) -> None:
        """See `OnlineSide`."""
        self._vectors = torch.empty(0)  # the last graph knows parameters of the old shapes
        self.table.grow(ids)
        for parameter, state in self._optimizer.state.items():
            if "sum" in state and state["sum"].shape != parameter.shape:
                fresh = torch.full_like(parameter.data, self._how.first_square)
                fresh[: len(state["sum"])] = state["sum"]
                state["sum"] = fresh

    @property
    def nbytes(self) -> int:
        """What the optimiser holds."""
        state = self._optimizer.state.values()
        return sum(v.nbytes for one in state for v in one.values() if isinstance(v, Tensor))

    def state_dict(self) -> dict[str, Any]:
        """See `OnlineSide`."""
        return {"steps": self._steps, "optimizer": self._optimizer.state_dict()["state"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `OnlineSide`."""
        self._steps = int(state["steps"])
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
