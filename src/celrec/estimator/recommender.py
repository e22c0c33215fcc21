"""The estimator: a table of events in, recommendations out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from celrec.config.options import given_plan_options
from celrec.config.picking import check_options, pick
from celrec.config.plan import LITE, Plan
from celrec.data.columns import Table
from celrec.data.id_map import Ids
from celrec.errors import CelrecError
from celrec.estimator.learning import (
    EventTable,
    Fitted,
    Names,
    OneOrMany,
    evaluate,
    fit_events,
    learn_events,
    requested_ids,
)
from celrec.inference.codes import code_table
from celrec.inference.explanation import Explainer, Explanation, Id, cluster_summary
from celrec.inference.top_items import TopItems
from celrec.runs.online_learner import OnlineLearner
from celrec.runs.run_folder import Run


class Recommender:
    """Learns from a table of events with original ids, and recommends.

    A table is a polars (also lazy), pandas or Arrow table, a dict of columns, the path of a csv,
    tsv or parquet file, or `Interactions`. The columns of users, items, targets and times are
    guessed from common names unless they are named; later tables may have the same names. Targets
    are ratings, or 0 and 1; a table without targets is implicit feedback. Results are tables of
    the kind that was learned from; polars tables for paths and `Interactions`.

    An option that is None is picked from the data, as `picked` says, or has the default of
    `celrec.Plan`. The same seed gives the same result.

    Args:
        model: The model: nmf (non-negative matrix factorisation), mf (matrix factorisation with
            biases), or a network; `celrec models` lists them.
        embedding: The embedding method: cel, full, modulo, …; `celrec embeddings` lists them.
        compression: Rows of each compressed table: a share of its ids (1%), a number (40), or auto:
            as many as lower the validation error.
        side: Which tables are compressed: items, users or both.
        rank: The embedding dimension; that of the preset if not given.
        preset: Hyperparameters by name: default; for nmf and mf also least-squares or descent, for
            nmf paper or released; for networks clusters or scratch (take over the clusters of a
            factorisation, or nothing); for cel-lite hard or paper; online: learn other embeddings
            event by event.
        seed: The random seed of splits, initial values and negative samples.
        levels: The vector of an id is the sum of a row of each level; levels share the rows evenly.
        start: Where clusters start: full (compressed from a fit with a row for each id), warm (the
            same with rows for the warmest ids only, as many as the table has), one, random:N,
            ratings:N (bins of mean rating), genres, or a run folder. If not given: full, or for mf
            warm where that would take more than 4 GiB; one with other presets.
        budget: Bytes of the tables of users and items (50kB, or 2B/id), for which validation data
            choose rank, rows and levels.
        frozen: Keep the initial clusters.
        personalise: Which ids get a row of their own in the end: none, all, or those with more
            interactions than a number.
        loss: The loss: squared-error, cross-entropy (of targets 0 and 1) or ranking (interactions
            above random items; not online). Factorisations that are not learned online have
            squared-error.
        positive: Targets from this one on are conversions, for cross-entropy, ranking and mmoe.
        negatives: Negative sampling, for implicit feedback: each interaction has target 1, and
            beside it so many random items without an interaction have target 0.
        features: Whether a network has features of users and items, such as genres, as inputs.
        penalty: A factor on all regularisation.
        rate: A factor on all learning rates, with embedding cel-lite or preset online.

    >>> import celrec
    >>> ratings = celrec.Planted(3_000, 60, 40, dim=2, item_clusters=4).interactions().to_frame()
    >>> rec = celrec.Recommender(compression="4").fit(ratings)
    >>> rec, len(rec.clusters())
    (Recommender(mf, cel, 60 users, 40 items), 4)
    >>> rec.recommend(7, k=2).columns
    ['user', 'place', 'item', 'score']

    One that learns online takes new users and items at any time:

    >>> live = celrec.Recommender().partial_fit({"user": ["ann", "bob"], "item": ["tea", "tea"]})
    >>> live.partial_fit({"user": ["eve", "ann"], "item": ["milk", "milk"]})
    Recommender(mf, cel-lite, 3 users, 2 items)
    >>> live.recommend("bob", k=1)["item"].to_list()
    ['milk']

    """

    def __init__(
        self,
        *,
        model: str | None = None,
        embedding: str | None = None,
        compression: str | None = None,
        side: str | None = None,
        rank: int | None = None,
        preset: str | None = None,
        seed: int | None = None,
        levels: int | None = None,
        start: str | None = None,
        budget: str | None = None,
        frozen: bool | None = None,
        personalise: str | None = None,
        loss: str | None = None,
        positive: float | None = None,
        negatives: int | None = None,
        features: bool | None = None,
        penalty: float | None = None,
        rate: float | None = None,
    ) -> None:
        options = given_plan_options(locals())
        check_options(options)
        self._options = options
        self._state: Fitted | None = None
        self._tops: dict[str, TopItems] = {}

    def __repr__(self) -> str:
        if self._state is None:
            return "Recommender(not fitted)"
        run, plan = self.run, self.plan
        sizes = f"{len(run.users):,} users, {len(run.items):,} items"
        return f"Recommender({plan.model}, {plan.embedding}, {sizes})"

    @property
    def plan(self) -> Plan:
        """The plan of the trained model."""
        return self.run.plan

    @property
    def picked(self) -> str:
        """The options that were picked from the data, and why."""
        return self._fitted().picked

    @property
    def run(self) -> Run:
        """The trained model as it is now, with its ids and its plan."""
        return self._fitted().current_run()

    @property
    def learner(self) -> OnlineLearner | None:
        """The online learner, which `partial_fit` trains further; None if there is none."""
        return self._fitted().learner

    def fit(
        self,
        table: str | Path | Table,
        *,
        user: str | None = None,
        item: str | None = None,
        target: str | None = None,
        time: str | None = None,
        columns: Sequence[str] = (),
        drop_invalid: bool = False,
    ) -> Recommender:
        """Train a new model on all events of a table.

        Early stopping on a tenth of the events chooses the number of steps; the model is then
        trained anew on all of them. `columns` names further columns of ids, for networks. A row
        without a user, an item or a finite target is an error, or dropped with `drop_invalid`.
        """
        events = EventTable(table, Names(user, item, target, time, tuple(columns)))
        self._state, self._tops = fit_events(events, self._options, drop_invalid), {}
        return self

    def partial_fit(
        self,
        table: str | Path | Table,
        *,
        user: str | None = None,
        item: str | None = None,
        target: str | None = None,
        time: str | None = None,
        columns: Sequence[str] = (),
    ) -> Recommender:
        """Learn further events, in chronological order if they have times; ids may be new.

        Without an earlier `fit`, options are picked from the first table.
        """
        state = self._state
        if state is not None and state.learner is None:
            raise CelrecError(
                f"embedding {self.plan.embedding!r} was learned from a whole log and cannot go on; "
                f"fit with embedding={LITE!r}, or begin with partial_fit, or fit all data anew"
            )
        named = Names(user, item, target, time, tuple(columns))
        events = EventTable(table, named, None if state is None else state.names)
        if state is None or state.learner is None:
            log = events.interactions()
            plan, picked = pick(log, self._options, online=True)
            learner = OnlineLearner.start(plan, list(log.columns), expected_ids=log.num_items)
            learn_events(learner, log, self._options)
            self._state = Fitted(events.names, events.kind, self._options, picked, None, learner)
        else:
            log = events.interactions(need_target=not state.learner.plan.only_positive)
            learn_events(state.learner, log, self._options)
            state.run = None
        self._tops = {}
        return self

    def predict(
        self, pairs: str | Path | Table, *, user: str | None = None, item: str | None = None
    ) -> Table:
        """The table of users and items, with a column `prediction`.

        Predictions are on the scale of the targets: ratings or probabilities. With loss `ranking`
        only the order of one user's items is meaningful. Unknown ids have the vector of unseen
        ids.
        """
        run = self.run
        events = EventTable(pairs, Names(user, item), self._fitted().names)
        if not len(events):
            return events.predicted(pl.Series([], dtype=pl.Float32))
        return events.predicted(pl.Series(run.model.predict(events.pairs(run.known)).numpy()))

    def recommend(
        self,
        users: OneOrMany | None = None,
        k: int = 10,
        *,
        with_seen: bool = False,
        allowed: Ids | None = None,
        banned: Ids | None = None,
        ties: str = "popularity",
    ) -> Table:
        """The k best items for each user, without items that the user has seen.

        `users` is an id or a column of ids; None: all known users. Columns: user, place (from 1),
        item, score, and title where there are titles. Unknown users have the vector of unseen ids.
        Only `allowed` items are recommended (all if None), and no `banned` ones. Ties are broken
        by popularity, or with `ties="recency"` by the latest interaction.
        """
        top, ids = self._top(ties, allowed, banned), self._users(users)
        return self._fitted().kind.made(top.recommend(ids, k, with_seen=with_seen))

    def recommend_in_parts(
        self,
        users: OneOrMany | None = None,
        k: int = 10,
        *,
        with_seen: bool = False,
        allowed: Ids | None = None,
        banned: Ids | None = None,
        ties: str = "popularity",
    ) -> Iterator[Table]:
        """The same in tables of some thousand users, in bounded memory."""
        top, ids = self._top(ties, allowed, banned), self._users(users)
        return map(self._fitted().kind.made, top.in_parts(ids, k, with_seen=with_seen))

    def similar(self, items: OneOrMany, k: int = 10) -> Table:
        """The k items most similar to each item: of its cluster, then of the nearest clusters.

        Columns: item, place (from 1), similar, score, and title where there are titles.
        """
        top = self._top("popularity", None, None)
        return self._fitted().kind.made(top.similar(requested_ids("items", items), k))

    def clusters(self, side: str = "items", members: int = 5, level: int = 1) -> Table:
        """One row per cluster of a level, highest mean target first, as `cluster_summary` has them.

        Columns: cluster, members, interactions, mean_target, and examples: the most active members.
        """
        return self._fitted().kind.made(cluster_summary(self.run, side, members, level))

    def codes(self, side: str = "items") -> Table:
        """Each id with its cluster in each level, as `code_table` has them: semantic ids.

        Columns: id, code_1, code_2, …; ids with equal first codes are similar.
        """
        return self._fitted().kind.made(code_table(self.run, side))

    def explain(self, item: Id, user: Id | None = None, neighbours: int = 5) -> Explanation:
        """The cluster of an item: the splits that led to it, and its other members.

        With a user, also the score, and the items of the cluster that the user has seen. `text()`
        is for people, `as_dict()` for JSON.
        """
        return Explainer(self.run).explain(item, user, neighbours)

    def evaluate(
        self,
        table: str | Path | Table,
        k: int | None = None,
        *,
        relevant: float | None = None,
        user: str | None = None,
        item: str | None = None,
        target: str | None = None,
        time: str | None = None,
    ) -> dict[str, Any]:
        """Metrics on other events and, with `k`, of the top-k recommendations.

        As `celrec evaluate --json` prints them. Items with a target from `relevant` on are
        relevant; by default a target of 1 if targets are 0 and 1, else from `positive` on, else
        ratings not below the mean.
        """
        run = self.run
        events = EventTable(table, Names(user, item, target, time), self._fitted().names)
        log = events.interactions(need_target=not run.plan.only_positive)
        return evaluate(run, run.plan.prepared(log), k=k, relevant=relevant)

    def save(self, path: str | Path) -> None:
        """Write a run folder, which every `celrec` command can use; an existing run is replaced.

        A model that learns online is written as an online run, which can be resumed.
        """
        self._fitted().save(path)

    @classmethod
    def load(cls, path: str | Path) -> Recommender:
        """Read a folder that `save`, `celrec train --out` or `celrec online --run` wrote.

        For runs of the command, all options count as given.
        """
        state = Fitted.load(path)
        made = cls(**state.options)
        made._state = state
        return made

    def _fitted(self) -> Fitted:
        if self._state is None:
            raise CelrecError("the recommender has learned nothing yet; call fit first")
        return self._state

    def _top(self, ties: str, allowed: Ids | None, banned: Ids | None) -> TopItems:
        run = self.run
        if allowed is None and banned is None:
            if ties not in self._tops:
                self._tops[ties] = TopItems(run, ties=ties)
            return self._tops[ties]
        given = {"allowed": allowed, "banned": banned}.items()
        ids = {name: requested_ids(name, values) for name, values in given if values is not None}
        return TopItems(run, ties=ties, **ids)

    def _users(self, users: OneOrMany | None) -> pl.Series:
        known = self.run.users.get_column("id")
        return known if users is None else requested_ids("users", users)
