"""Deep Interest Evolution Network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812  (its name everywhere)
from torch import Tensor, nn

from celrec.models.attention import TargetAttention
from celrec.models.interaction import History
from celrec.models.layers import HistoryInteraction, Tower, flat


class DIEN(HistoryInteraction):
    """y = MLP(user, target, interest, user∘target, Σ history, features) (Zhou et al., AAAI'19).

    A GRU reads the history. A second one (AUGRU), whose update gate is scaled by the attention of
    the target to each state, models the evolution of the interest in the target. The product
    user∘target helps a small network to match users and items.

    >>> history = History(torch.ones(7, 1, 5, 8), torch.ones(7, 1, 5, dtype=torch.bool))
    >>> DIEN(8)(torch.ones(7, 1, 8), torch.ones(7, 50, 8), history).shape
    torch.Size([7, 50])
    """

    wants_negatives = True

    def __init__(
        self,
        dim: int,
        fields: int = 0,
        *,
        hidden: Sequence[int] = (16, 8),
        attention: Sequence[int] = (16, 8),
        auxiliary: Sequence[int] = (16, 8),
    ) -> None:
        super().__init__()
        self.reader = nn.GRU(dim, dim, batch_first=True)
        self.attention = TargetAttention(dim, attention)
        self.inputs = nn.Linear(dim, 3 * dim)
        self.gates = nn.Linear(dim, 2 * dim, bias=False)
        self.candidate = nn.Linear(dim, dim, bias=False)
        self.next_item = Tower([dim, dim], auxiliary)
        self.dim = dim
        self.tower = Tower([dim, dim, dim, dim, dim, fields * dim], hidden)

    def forward(
        self,
        user: Tensor,
        item: Tensor,
        history: History | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        history = self.needed(history).gathered()
        states = self.read(history)
        interests = History(states, history.filled)
        evolved = self._evolve(interests, self.attention(item, interests))
        known = history.vectors * history.filled.unsqueeze(-1)
        inputs = [user, item, evolved, (user, item), known.sum(-2), flat(features, user)]
        predicted: Tensor = self.tower(inputs)
        return predicted

    def read(self, history: History) -> Tensor:
        """The interest states after each item of the history, (..., length, dim)."""
        vectors = history.vectors * history.filled.unsqueeze(-1)
        if not vectors.shape[-2]:
            return vectors
        # Zeros change the state of a GRU too, so empty places are read last. The sort keys are
        # distinct, since ONNX has no stable sort.
        length = vectors.shape[-2]
        place = torch.arange(length, device=vectors.device)
        order = torch.where(history.filled, place, place + length).argsort(dim=-1)
        places = order.unsqueeze(-1).expand_as(vectors)
        ordered = vectors.gather(-2, places)
        states: Tensor = self.reader(ordered.unsqueeze(0).flatten(0, -3))[0]
        return torch.zeros_like(ordered).scatter(-2, places, states.view(ordered.shape))

    def next_item_score(self, states: Tensor, item: Tensor) -> Tensor:
        """The logit that `item` follows an interest state, for the auxiliary loss."""
        score: Tensor = self.next_item([states, item])
        return score

    def auxiliary(self, history: History, not_next: Tensor) -> Tensor:
        """−log σ(score of the next item) − log(1 − σ(score of a negative)), mean over histories.

        It trains each interest state to predict the next item.
        """
        history = history.gathered()
        states = self.read(history)[..., :-1, :]
        both = _neighbours(history.filled)
        came = self.next_item_score(states, history.vectors[..., 1:, :])
        other = self.next_item_score(states, not_next[..., 1:, :])
        losses = F.softplus(-came) + F.softplus(other)
        return (losses * both).sum() / both.sum().clamp(min=1)

    def auxiliary_terms(self, filled: Tensor) -> Tensor:
        """The number of pairs of consecutive items."""
        return _neighbours(filled).sum()

    def _evolve(self, interests: History, weights: Tensor) -> Tensor:
        """AUGRU: h = (1 − α·u)·h + α·u·tanh(…); empty places do not change the state."""
        new = self.inputs(interests.vectors)  # shared by all targets
        dim = new.shape[-1] // 3
        state: Tensor = new.new_zeros((*weights.shape[:-1], dim))
        for place in range(weights.shape[-1]):
            update_in, reset_in, candidate_in = new[..., place, :].split(dim, -1)
            update, reset = self.gates(state).split(dim, -1)
            update = (update + update_in).sigmoid() * weights[..., place, None]
            reset = (reset + reset_in).sigmoid()
            candidate = (candidate_in + self.candidate(reset * state)).tanh()
            state = state + update * (candidate - state)
        return state


def _neighbours(filled: Tensor) -> Tensor:
    return filled[..., :-1] & filled[..., 1:]
