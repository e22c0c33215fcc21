"""Splits of a log into training, validation and test data, and dense or sparse variants."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from celrec.data.interactions import IdColumn, Interactions
from celrec.errors import CelrecError


@dataclass(frozen=True, slots=True)
class Split:
    """Training, validation and test data: disjoint parts of a log, each in the log's order.

    The validation data are part of the training data: the test data do not depend on them, so
    all hyperparameters can be selected on them.

    >>> import celrec
    >>> log = celrec.read({"user": [1] * 10, "item": list(range(10)), "rating": [1.0] * 10,
    ...                    "time": list(range(10))})
    >>> split = Split.chronological(log, test=0.2, valid=0.25)
    >>> split.train.timestamp, split.valid.timestamp, split.test.timestamp
    (array([0, 1, 2, 3, 4, 5]), array([6, 7]), array([8, 9]))
    >>> [len(part.test) for part in Split.folds(log, 3)]
    [4, 3, 3]
    """

    train: Interactions
    valid: Interactions
    test: Interactions

    @classmethod
    def random(
        cls, log: Interactions, *, test: float = 0.2, valid: float = 0.1, seed: int = 0
    ) -> Split:
        """A random share `test` of the log, and a share `valid` of the rest."""
        order = np.random.default_rng(seed).permutation(len(log))
        return cls._from_test(log, order[: _share(len(log), test, "test")], valid, [seed])

    @classmethod
    def fold(
        cls, log: Interactions, number: int, of: int = 5, *, valid: float = 0.1, seed: int = 0
    ) -> Split:
        """The split whose test data are fold `number` (1 … `of`) of a seeded k-fold partition."""
        if not 2 <= of <= len(log):
            raise CelrecError(f"folds must lie in 2 … {len(log):,} (the rows), not {of}")
        if not 1 <= number <= of:
            raise CelrecError(f"fold must lie in 1 … {of}, not {number}")
        order = np.random.default_rng(seed).permutation(len(log))
        return cls._from_test(log, order[number - 1 :: of], valid, [seed, number])

    @classmethod
    def folds(
        cls, log: Interactions, of: int = 5, *, valid: float = 0.1, seed: int = 0
    ) -> Iterator[Split]:
        """All splits of the k-fold partition; every row is a test row exactly once."""
        for number in range(1, of + 1):
            yield cls.fold(log, number, of, valid=valid, seed=seed)

    @classmethod
    def chronological(cls, log: Interactions, *, test: float = 0.2, valid: float = 0.1) -> Split:
        """The latest share `test` of the log, and the latest share `valid` of the rest.

        Rows with equal timestamps are in the log's order.
        """
        if log.timestamp is None:
            raise CelrecError("log: a chronological split needs timestamps; split at random")
        order = np.argsort(log.timestamp, kind="stable")
        first_test = len(order) - _share(len(order), test, "test")
        first_valid = first_test - _share(first_test, valid, "valid")
        train, valid_rows, tested = np.split(order, [first_valid, first_test])
        return cls(log[train], log[valid_rows], log[tested])

    @classmethod
    def named(cls, log: Interactions, fold: str | None, seed: int = 0) -> Split:
        """Parse a split: `1/5` is fold 1 of 5, `time` tests on the latest fifth.

        None tests on a random fifth.

        >>> import celrec
        >>> log = celrec.read({"user": [1] * 10, "item": list(range(10)), "rating": [1.0] * 10})
        >>> len(Split.named(log, "2/5").test)
        2
        """
        if fold is None:
            return cls.random(log, seed=seed)
        if fold == "time":
            return cls.chronological(log)
        return cls.fold(log, *fold_of(fold), seed=seed)

    def train_and_valid(self) -> Interactions:
        """Training and validation data together, for the final fit after model selection."""
        parts = (self.train, self.valid)
        times = [part.timestamp for part in parts if part.timestamp is not None]
        return replace(
            self.train,
            user=np.concatenate([part.user for part in parts]),
            item=np.concatenate([part.item for part in parts]),
            target=np.concatenate([part.target for part in parts]),
            timestamp=np.concatenate(times) if times else None,
            columns={
                name: IdColumn(
                    np.concatenate([part.columns[name].values for part in parts]), column.ids
                )
                for name, column in self.train.columns.items()
            },
        )

    @classmethod
    def _from_test(
        cls, log: Interactions, test_rows: NDArray[np.int64], valid: float, seed: list[int]
    ) -> Split:
        tested = np.zeros(len(log), bool)
        tested[test_rows] = True
        rest = np.flatnonzero(~tested)
        validation = np.zeros(len(rest), bool)
        # The tag makes this generator independent of the one for test rows.
        shuffled = np.random.default_rng([*seed, 0xA11D]).permutation(len(rest))
        validation[shuffled[: _share(len(rest), valid, "valid")]] = True
        return cls(log[rest[~validation]], log[rest[validation]], log[tested])


def fold_of(text: str) -> tuple[int, int]:
    """Parse a fold such as `1/5` into its number and the number of folds.

    >>> fold_of("2/5")
    (2, 5)
    """
    parts = re.fullmatch(r"(\d+)/(\d+)", text)
    if parts is None:
        raise CelrecError(f"fold must look like 1/5, not {text!r}")
    return int(parts[1]), int(parts[2])


def _share(rows: int, share: float, name: str) -> int:
    if not 0 <= share < 1:
        raise CelrecError(f"{name} must be a share in [0, 1), not {share}")
    return round(rows * share)


def dense(log: Interactions, more_than: int = 100) -> Interactions:
    """The interactions of users and items that both have more than `more_than` interactions.

    Users and items are filtered once, by the counts of the whole log, as in the paper; in the
    result they may have fewer interactions. Ids are renumbered.
    """
    log = log.seen()
    warm_users = log.user_counts > more_than
    warm_items = log.item_counts > more_than
    kept = log[warm_users[log.user] & warm_items[log.item]]
    if not len(kept):
        raise CelrecError(f"more_than={more_than}: no interactions are left; choose a smaller one")
    return kept.compact()


def sparse(log: Interactions, drop: float = 0.5, seed: int = 0) -> Interactions:
    """The log without a random share `drop` of each user's interactions.

    A user with n interactions keeps max(1, n − ⌊drop·n⌋). Ids are renumbered.
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
