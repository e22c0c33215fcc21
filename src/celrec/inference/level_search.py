"""Search among items whose vectors are sums of shared rows: branch and bound over codes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.inference.search import Best, ItemGroups, Skipped, mark_seen, sort_best, take_members
from celrec.recommender.model import Model
from celrec.runtime.jit import Doubles, Ints, ShortInts, compiled


def summed_items(model: Model) -> LevelledEmbedding | None:
    """The items' table, if the score of an item is a sum over the levels of it and its bias."""
    table = model.items
    if isinstance(table, BiasedEmbedding) and model.model.bilinear:
        table = table.rows
    if not isinstance(table, LevelledEmbedding) or not model.model.linear:
        return None
    return table if len(table.levels) > 1 and table.padding_idx is None else None


class CodeTree(NamedTuple):
    """Groups of items with equal codes, as leaves of a tree of their first two codes.

    A branch has the groups with one first code, a pair those with one first and second code.
    Rows of all levels are numbered one level after the other.

    >>> table = LevelledEmbedding(4, 2, max_clusters=2)
    >>> table.levels[1].split(0, torch.tensor([1, 3]))
    1
    >>> codes = item_codes(table, 4)
    >>> tree = CodeTree.of(ItemGroups.of(codes[:, 1], np.arange(4, dtype=np.int32)), codes, table)
    >>> tree.level_starts, tree.first, tree.second
    (array([0, 1, 3]), array([0], dtype=int32), array([1, 2], dtype=int32))
    """

    level_starts: NDArray[np.int64]
    """(levels + 1): the number of the first row of each level."""
    first: NDArray[np.int32]
    """The row of the first level of each branch."""
    branch_starts: NDArray[np.int64]
    """(branches + 1): offsets of the branches in the pairs."""
    branch_own: NDArray[np.float32]
    """The largest `own` part in each branch, 0 if there is none."""
    second: NDArray[np.int32]
    """The row of the second level of each pair."""
    pair_starts: NDArray[np.int64]
    """(pairs + 1): offsets of the pairs in the groups."""
    pair_own: NDArray[np.float32]
    """The largest `own` part in each pair, 0 if there is none."""
    later: NDArray[np.int32]
    """(groups, levels − 2): the rows of the other levels."""
    starts: NDArray[np.int64]
    """The same as those of `ItemGroups`, as are `members` and `own`."""
    members: NDArray[np.int32]
    own: NDArray[np.float32]

    @classmethod
    def of(cls, groups: ItemGroups, codes: NDArray[np.int32], table: LevelledEmbedding) -> CodeTree:
        """The tree of groups in the order of their codes, given the codes of each item."""
        sizes = [level.num_clusters for level in table.clustered_levels]
        level_starts = np.concatenate([[0], np.cumsum(sizes)])
        rows = codes[groups.first] + level_starts[:-1].astype(np.int32)
        pair_starts = _changes(rows[:, :2])
        first, second = np.ascontiguousarray(rows[pair_starts[:-1], :2].T)
        branch_starts = _changes(first[:, None])
        pair_own = np.zeros(len(second), np.float32)
        if len(groups.own):  # members are sorted by it
            pair_own = np.fmax.reduceat(groups.own[groups.starts[:-1]], pair_starts[:-1])
        branch_own = np.fmax.reduceat(pair_own, branch_starts[:-1])
        return cls(
            *(level_starts, first[branch_starts[:-1]], branch_starts, branch_own),
            *(second, pair_starts, pair_own, np.ascontiguousarray(rows[:, 2:])),
            *(groups.starts, groups.members, groups.own),
        )


def item_codes(table: LevelledEmbedding, count: int) -> NDArray[np.int32]:
    """(count, levels): the codes of the first items."""
    return table.codes(torch.arange(count)).int().numpy()


def _changes(values: NDArray[np.int32]) -> NDArray[np.int64]:
    """The offsets of runs of equal rows, and the number of rows."""
    new = np.ones(len(values) + 1, bool)
    new[1:-1] = (values[1:] != values[:-1]).any(1)
    return np.flatnonzero(new)


def search_levels(
    scores: NDArray[np.float64], tree: CodeTree, rank: NDArray[np.int32], k: int, skipped: Skipped
) -> Best:
    """The k best items per query, given the score of each row of each level.

    The score of an item is the sum over its rows, and its own part. Branches are visited by the
    most that an item of theirs can have: the score of the first row, the best rows of later
    levels, and the largest own part. Branches and pairs that cannot have one of the best are
    passed over.
    """
    count = len(scores)
    best, items = np.empty((count, k)), np.empty((count, k), np.int32)
    filled = np.zeros(count, np.int64)
    mark = np.zeros(len(rank) if len(skipped.items) else 0, np.int32)
    if len(tree.members):
        _search(scores, tree, rank, *skipped, mark, best, items, filled)
    sort_best(best, items, rank, filled)
    return Best(items, best.astype(np.float32))


@compiled
def _search(
    scores: Doubles,
    tree: CodeTree,
    rank: ShortInts,
    seen_starts: Ints,
    seen: ShortInts,
    mark: ShortInts,
    best: Doubles,
    chosen: ShortInts,
    filled: Ints,
) -> None:
    """Fill the best items of each user.

    A score is (first + second) + (third + …) + own, in this order, as are the bounds: so rounding
    never puts a bound below a score.
    """
    first, branch_starts, second, pair_starts, later, starts = (
        *(tree.first, tree.branch_starts, tree.second),
        *(tree.pair_starts, tree.later, tree.starts),
    )
    pair_own, members, own = tree.pair_own, tree.members, tree.own
    k, owned, more = best.shape[1], len(own) > 0, later.shape[1]
    bounds = np.empty(len(first))
    for user in range(len(scores)):
        row, values, items, size = scores[user], best[user], chosen[user], 0
        mark_seen(mark, seen[seen_starts[user] : seen_starts[user + 1]], user)
        most_second, most_later = _most(row, tree.level_starts)
        for branch in range(len(first)):
            bounds[branch] = (row[first[branch]] + most_second) + most_later
            bounds[branch] += tree.branch_own[branch]
        floor = -np.inf
        for branch in np.argsort(-bounds):
            if bounds[branch] < floor:
                break
            of_first = row[first[branch]]
            for pair in range(branch_starts[branch], branch_starts[branch + 1]):
                of_pair = of_first + row[second[pair]]
                if (of_pair + most_later) + pair_own[pair] < floor:
                    continue
                for group in range(pair_starts[pair], pair_starts[pair + 1]):
                    score = 0.0
                    for place in range(more):
                        score += row[later[group, place]]
                    score += of_pair
                    at, end = starts[group], starts[group + 1]
                    if (score + own[at] if owned else score) < floor:
                        continue
                    size = take_members(
                        score, at, end, members, own, rank, mark, user, values, items, size
                    )
                    if size == k:
                        floor = values[0]
        filled[user] = size


@compiled
def _most(row: Doubles, level_starts: Ints) -> tuple[float, float]:
    """The best score of a row of the second level, and the sum of the best ones of later levels."""
    later = 0.0
    for level in range(2, len(level_starts) - 1):
        later += row[level_starts[level] : level_starts[level + 1]].max()
    return row[level_starts[1] : level_starts[2]].max(), later
