"""The way of rows to the processes that own what they tell of, and back."""

from __future__ import annotations

import torch
from torch import Tensor

from celrec.clustering.ranks import Ranks


class Routes:
    """Made for some events, whose owners are given: what is told of each goes to its owner.

    >>> routes = Routes(torch.tensor([0, 0]), Ranks.alone())
    >>> routes.back(10 * routes.there(torch.tensor([1, 2])))
    tensor([10, 20])
    """

    def __init__(self, owners: Tensor, ranks: Ranks) -> None:
        """`owners` are ranks. All processes make theirs together."""
        self._ranks = ranks
        self._order = torch.argsort(owners, stable=True)
        sent = torch.bincount(owners, minlength=ranks.size)
        ones = [1] * ranks.size
        self._sent = sent.tolist()
        self._taken = ranks.exchanged(sent, ones, ones).tolist()

    @classmethod
    def to_owners(cls, ids: Tensor, ranks: Ranks) -> tuple[Routes, Tensor]:
        """The way to the owners of ids, and by their numbers here those that others ask for.

        Number n belongs to rank n mod size, where it is n div size; one below 0 stays at home.
        """
        known = ids >= 0
        routes = cls(torch.where(known, ids % ranks.size, ranks.rank), ranks)
        return routes, routes.there(torch.where(known, ids // ranks.size, ids))

    def there(self, values: Tensor) -> Tensor:
        """What others tell of what this process owns, given a row for each event here."""
        return self._ranks.exchanged(values[self._order], self._sent, self._taken)

    def back(self, answers: Tensor) -> Tensor:
        """The answers to what was told here, in its order, given those to what came."""
        came = self._ranks.exchanged(answers, self._taken, self._sent)
        found = torch.empty_like(came)
        found[self._order] = came
        return found
