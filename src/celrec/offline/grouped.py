"""The interactions of each rank."""

from __future__ import annotations

from celrec.data.interactions import Interactions
from celrec.runtime.communicator import Communicator


def own_interactions(log: Interactions, communicator: Communicator) -> Interactions:
    """The interactions of this process's users: see `Communicator.cuts`. `log` is that of all.

    >>> import celrec
    >>> log = celrec.Planted(rows=100, users=9, items=5, item_clusters=2).interactions()
    >>> [len(own_interactions(log, Communicator(rank, 1))) for rank in range(1)]
    [100]
    >>> parts = [own_interactions(log, Communicator(rank, 3)) for rank in range(3)]
    >>> sum(map(len, parts)), all(len(part) > 20 for part in parts)
    (100, True)
    """
    if communicator.size == 1:
        return log
    first, last = communicator.cuts(log.user_counts)[communicator.rank :][:2]
    return log[(log.user >= first) & (log.user < last)]
