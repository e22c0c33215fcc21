"""Cluster listings, and explanations of items: cluster, splits, other members, the user."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from celrec.data.id_map import Ids
from celrec.errors import CelrecError
from celrec.inference.codes import codes_of, table_of_level
from celrec.inference.top_k import TopK
from celrec.recommender.clusters import row_weights, split_tree
from celrec.runs.run_folder import Run


def cluster_summary(
    run: Run, side: str = "items", members: int = 5, level: int = 1
) -> pl.DataFrame:
    """One row per cluster of a run, or of a level of it, sorted by mean target, highest first.

    Columns: cluster, members (their number), interactions, mean_target (null without
    interactions), and examples: the titles, or else the ids, of up to `members` of the most
    active members. `side` is items, users, or the name of a further id column.
    """
    if members < 0:
        raise CelrecError(f"members must not be negative, not {members}")
    table = table_of_level(run, side, level)
    if "cluster" not in table.columns:
        raise CelrecError(f"the {side} are not clustered; look at the other side (--side)")
    return cluster_table(table, members)


def cluster_table(ids: pl.DataFrame, examples: int = 5) -> pl.DataFrame:
    """The same for a table of ids with the columns id, cluster, interactions and mean_target.

    >>> ids = pl.DataFrame({"id": [7, 8, 9], "title": ["Heat", None, None], "cluster": [0, 0, 1],
    ...                     "interactions": [3, 1, 2], "mean_target": [4.0, 2.0, 3.0]})
    >>> cluster_table(ids).rows()
    [(0, 2, 4, 3.5, ['Heat', '8']), (1, 1, 2, 3.0, ['9'])]
    """
    count = pl.col("interactions")
    total = (pl.col("mean_target").fill_nan(0) * count).sum()
    return (
        ids.group_by("cluster")
        .agg(
            members=pl.len(),
            interactions=count.sum(),
            mean_target=(total / count.sum()).fill_nan(None),
            examples=_names(ids).sort_by("interactions", descending=True).head(examples),
        )
        .sort("mean_target", "cluster", descending=[True, False], nulls_last=True)
    )


def _names(ids: pl.DataFrame) -> pl.Expr:
    name = pl.col("id").cast(pl.String)
    return pl.coalesce(pl.col("title").cast(pl.String), name) if "title" in ids.columns else name


Id: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class Member:
    """An item of a cluster."""

    item: Id
    title: str | None
    interactions: int

    @property
    def name(self) -> str:
        """The title, or else the id."""
        return str(self.item) if self.title is None else self.title


@dataclass(frozen=True, slots=True)
class Explanation:
    """An item and its cluster; for a user also the score and the seen items of the cluster."""

    item: Id
    title: str | None
    interactions: int
    """Training interactions of the item."""
    own_row: bool
    """Whether the item has a row of its own that is added to the row of its cluster."""
    cluster: int | None
    """None if items do not share rows in clusters."""
    members: int
    """Number of items in the cluster, this one included."""
    codes: tuple[int, ...]
    """The clusters of the item in all levels, of which `cluster` is the first; empty without
    clusters."""
    path: tuple[int, ...]
    """The clusters from the root of the split tree to the cluster of the item; empty if there is no
    split tree."""
    weights: dict[int, float]
    """For a mixture of rows: the weights of at least 1 %, by row."""
    neighbours: tuple[Member, ...]
    """Other members of the cluster: those with more equal codes first, then the most active."""
    user: Id | None = None
    score: float | None = None
    """The prediction for the user."""
    shared: tuple[Member, ...] = ()
    """Other items of the cluster that the user has seen, latest first."""

    def as_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        fields = asdict(self)
        fields["weights"] = {str(cluster): weight for cluster, weight in self.weights.items()}
        return fields

    def text(self) -> str:
        """A few lines for people."""
        name = str(self.item) if self.title is None else f"{self.item} ({self.title})"
        lines = [f"{name}: {self.interactions:,} interactions"]
        if self.score is not None:
            lines[0] += f", score {self.score:.3f} for user {self.user}"
        if self.cluster is None:
            return f"{lines[0]}\nitems are in no clusters here"
        lines.append(f"in cluster {self.cluster}, with {self.members - 1:,} others")
        if len(self.codes) > 1:
            lines[-1] += f"; codes {' → '.join(map(str, self.codes))}"
        if len(self.weights) > 1:
            shares = ", ".join(f"{weight:.0%} of {row}" for row, weight in self.weights.items())
            lines[-1] += f"; a mixture of rows: {shares}"
        if self.own_row:
            lines[-1] += "; with a row of its own besides"
        if len(self.path) > 1:
            lines.append(f"split off along {' → '.join(map(str, self.path))}")
        if self.neighbours:
            lines.append(f"beside {' · '.join(other.name for other in self.neighbours)}")
        if self.shared:
            seen = " · ".join(other.name for other in self.shared)
            lines.append(f"user {self.user} has seen {seen} of that cluster")
        return "\n".join(lines)


class Explainer:
    """Explains the items of a run.

    >>> import celrec
    >>> from tempfile import mkdtemp
    >>> from celrec.runs.run_folder import load_run, save_run, trained_run
    >>> log = celrec.Planted(2_000, 40, 30, dim=2, item_clusters=3, noise=0.1).interactions()
    >>> plan = celrec.Plan(compression="3", rank=4)
    >>> folder = f"{mkdtemp()}/run"
    >>> model = celrec.fit(celrec.Split.random(log), plan).model
    >>> save_run(folder, trained_run(log, model, plan, {}, {}, {}))
    >>> why = Explainer(load_run(folder, seen=True)).explain(7, user=1, neighbours=2)
    >>> why.path[0], why.path[-1] == why.cluster, len(why.neighbours), why.score is None
    (0, True, 2, False)
    """

    def __init__(self, run: Run, top_k: TopK | None = None) -> None:
        """`top_k` computes scores; it is created on first use if None."""
        self._run, self._top_k = run, top_k
        self._parent = split_tree(run.model, "items")
        self._codes = codes_of(run, "items")

    def explain(self, item: Id, user: Id | None = None, neighbours: int = 5) -> Explanation:
        """Explain an item, for a user if one is given, with up to `neighbours` other members."""
        if neighbours < 0:
            raise CelrecError(f"neighbours must not be negative, not {neighbours}")
        items = self._run.items
        dense = int(self._run.known.item_ids.encode(_one(item))[0])
        if dense < 0:
            raise CelrecError(f"item {item!r} is not known; name one that is in the data")
        about = items.row(dense, named=True)
        cluster = about.get("cluster")
        members = others = pl.DataFrame()
        codes = () if self._codes is None else tuple(self._codes[dense].tolist())
        if self._codes is not None:
            equal = np.cumprod(self._codes == self._codes[dense], 1).sum(1)
            members = items.with_row_index("dense").with_columns(equal=equal)
            members = members.filter(pl.col("cluster") == cluster)
            others = members.filter(pl.col("dense") != dense).sort(
                "equal", "interactions", "dense", descending=[True, True, False]
            )
        return Explanation(
            item=about["id"],
            title=about.get("title"),
            interactions=about["interactions"],
            own_row=bool(about.get("private", False)),
            cluster=cluster,
            members=len(members),
            codes=codes,
            path=self._path(cluster),
            weights=row_weights(self._run.model, "items", dense),
            neighbours=_members(others.head(neighbours)),
            **({} if user is None else self._for_user(user, dense, cluster, neighbours)),
        )

    def _for_user(self, user: Id, item: int, cluster: int | None, most: int) -> dict[str, Any]:
        run = self._run
        if self._top_k is None:
            self._top_k = TopK(run.model, run.items.get_column("interactions").to_numpy())
        who = run.known.user_ids.encode(_one(user))
        best = self._top_k.within(allowed=[item]).recommend(who, 1)
        known = int(who[0])
        fields = {
            "user": user if known < 0 else run.users.get_column("id")[known],
            "score": float(best.scores[0, 0]),
        }
        if run.seen is None or cluster is None:
            return fields
        _, seen = run.seen.of(who)
        _, first = np.unique(seen, return_index=True)
        latest = run.items[seen[np.sort(first)]] if len(seen) else run.items.head(0)
        shared = latest.filter((pl.col("cluster") == cluster) & (pl.col("id") != self._id(item)))
        return {**fields, "shared": _members(shared.head(most))}

    def _id(self, item: int) -> Id:
        known: Id = self._run.items.get_column("id")[item]
        return known

    def _path(self, cluster: int | None) -> tuple[int, ...]:
        if cluster is None or self._parent is None:
            return ()
        path = [cluster]
        while (parent := int(self._parent[path[-1]])) >= 0:
            path.append(parent)
        return tuple(reversed(path))


def _one(given: Id) -> Ids:
    return pl.Series([given])


def _members(table: pl.DataFrame) -> tuple[Member, ...]:
    return tuple(
        Member(row["id"], row.get("title"), row["interactions"])
        for row in table.iter_rows(named=True)
    )
