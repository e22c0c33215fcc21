"""The share of the data that one of several processes trains on."""

from __future__ import annotations

from celrec.clustering.ranks import Ranks
from celrec.data.interactions import Interactions


def own_interactions(log: Interactions, ranks: Ranks) -> Interactions:
    """The interactions of this process's users: see `Ranks.cuts`. `log` is that of all.

    >>> import celrec
    >>> log = celrec.Planted(rows=100, users=9, items=5, item_clusters=2).interactions()
    >>> [len(own_interactions(log, Ranks(rank, 1))) for rank in range(1)]
    [100]
    >>> parts = [own_interactions(log, Ranks(rank, 3)) for rank in range(3)]
    >>> sum(map(len, parts)), all(len(part) > 20 for part in parts)
    (100, True)
    """
    if ranks.size == 1:
        return log
    first, last = ranks.cuts(log.user_counts)[ranks.rank :][:2]
    return log[(log.user >= first) & (log.user < last)]
