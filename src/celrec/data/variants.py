"""The paper's denser and sparser variants of a log."""

from __future__ import annotations

import numpy as np

from celrec.data.interactions import Interactions
from celrec.errors import CelrecError


def dense(log: Interactions, more_than: int = 100) -> Interactions:
    """The interactions between users and items that both have more than `more_than` of them.

    One simultaneous pass, as the paper has it: counts are those of the whole
    log, so what is left may have fewer. Ids are numbered anew.
    """
    log = log.seen()
    warm_users = log.user_counts > more_than
    warm_items = log.item_counts > more_than
    kept = log[warm_users[log.user] & warm_items[log.item]]
    if not len(kept):
        raise CelrecError(f"more_than={more_than}: no interactions are left; choose a smaller one")
    return kept.compact()


def sparse(log: Interactions, drop: float = 0.5, seed: int = 0) -> Interactions:
    """The log without a random share `drop` of each user's interactions, at least one kept.

    A user with n interactions keeps max(1, n − ⌊drop·n⌋). Ids are numbered anew.
    """
    if not 0 <= drop <= 1:
        raise CelrecError(f"drop must be a share in [0, 1], not {drop}")
    log = log.seen()
    counts = log.user_counts
    keep = np.maximum(counts - np.floor(drop * counts).astype(np.int64), 1)
    shuffled = np.random.default_rng(seed).permutation(len(log))
    by_user = shuffled[np.argsort(log.user[shuffled], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(counts)])
    users = log.user[by_user]
    rank = np.arange(len(log)) - starts[users]
    return log[np.sort(by_user[rank < keep[users]])].compact()
