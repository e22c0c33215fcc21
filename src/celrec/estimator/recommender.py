"""The estimator: a table of events in, recommendations out."""

from __future__ import annotations

import time as clock
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from celrec.config.options import given_plan_options
from celrec.config.picking import check_options, pick
from celrec.config.plan import LITE, Plan
from celrec.data.id_map import Ids
from celrec.data.split import Split
from celrec.data.tables import Table, TableKind
from celrec.errors import CelrecError
from celrec.estimator.events import ROLES, EventTable, Names, OneOrMany, requested_ids
from celrec.estimator.learning import evaluate, learn_events, load_estimator
from celrec.evaluation.comparison import training_result
from celrec.inference.clusters import cluster_summary
from celrec.inference.explanation import Explainer, Explanation, Id
from celrec.inference.top_items import TopItems
from celrec.offline.fitting import fit
from celrec.runs.following import asked_of, stream_source
from celrec.runs.online_learner import OnlineLearner
from celrec.runs.online_run import OnlineRun
from celrec.runs.run_folder import Run, keep_run, trained_run
from celrec.streams.events import Offset


class Recommender:
    """Learns from a table of events with original ids, and recommends.

    Tables are polars (also lazy), pandas or Arrow ones, dicts of columns, paths of csv, tsv or
    parquet files, or `Interactions`. Columns of users, items, targets and times are guessed from
    common names, or named as `celrec.read` has it; names that were given once hold for later
    tables too. Targets are ratings, 0 and 1, or none at all, where a log tells only what happened.
    Answers are tables of the kind that was learned from, a polars one if that was none.

    What is not given, or None, is picked from the data, as `picked` says, or has the default of
    `celrec.Plan`. The same seed gives the same result.

    Args:
        model: The model: nmf (non-negative matrix factorisation), mf (matrix factorisation with
            biases), or a network; `celrec models` lists them.
        embedding: The embedding method: cel, full, modulo, …; `celrec embeddings` lists them.
        compression: Rows of each compressed table: a share of its ids (1%), a number (40), or auto:
            as many as lower the validation error.
        side: Which tables are compressed: items, users or both.
        rank: The embedding dimension; that of the preset if not given.
        preset: Hyperparameters by name: default; for nmf and mf also posterior or descent, for nmf
            paper or released; for networks clusters or scratch (take over the clusters of a
            factorisation, or nothing); for cel-lite hard or paper; online: learn other embeddings
            event by event.
        seed: The random seed of splits, initial values and negative samples.
        start: The initial clusters: one, random:N, ratings:N (bins of mean rating), genres, or
            those of a run folder.
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
    >>> rec
    Recommender(mf, cel, 60 users, 40 items)
    >>> rec.recommend(7, k=2).columns
    ['user', 'place', 'item', 'score']
    >>> rec.predict({"user": [7, 8], "item": [3, 3]}).keys()
    dict_keys(['user', 'item', 'prediction'])
    >>> len(rec.clusters())
    4

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
        start: str | None = None,
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
        self._told = ""
        self._run: Run | None = None
        self._learner: OnlineLearner | None = None
        self._source: dict[str, Any] = {}
        self._offset: Offset | None = None
        self._notes: Mapping[str, Any] = {}
        self._names: Names | None = None
        self._kind = TableKind.POLARS
        self._tops: dict[str, TopItems] = {}

    def __repr__(self) -> str:
        if self._run is None and self._learner is None:
            return "Recommender(not fitted)"
        run, plan = self._known(), self.plan
        sizes = f"{len(run.users):,} users, {len(run.items):,} items"
        return f"Recommender({plan.model}, {plan.embedding}, {sizes})"

    @property
    def plan(self) -> Plan:
        """What is trained."""
        return self._known().plan

    @property
    def picked(self) -> str:
        """What was picked from the data, and why."""
        self._known()
        return self._told

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
        """Learn from all events of a table; what was learned before is forgotten.

        A tenth of the events chooses the number of steps, then all are learned anew.
        `columns` names further columns of ids, for networks. A row without a user, an item or a
        finite target is an error, or left out with `drop_invalid`.
        """
        events = EventTable(table, Names(user, item, target, time, tuple(columns)))
        log = events.interactions(drop_invalid=drop_invalid)
        plan, told = pick(log, self._options)
        prepared = plan.prepared(log)
        split = Split.random(prepared, test=0, seed=plan.seed)
        begun = clock.perf_counter()
        fitted = fit(split, plan)
        result = training_result(fitted, plan, split, clock.perf_counter() - begun)
        self._begin(events, told)
        source = {**self._about(), "reading": {**events.reading, "drop_invalid": drop_invalid}}
        self._run = trained_run(
            *(
                split.train_and_valid(),
                fitted.model,
                plan,
                fitted.validation_records,
                source,
                result,
            ),
            seen=log,
        )
        if plan.embedding == LITE:
            self._learner = OnlineLearner.after(fitted, plan, prepared, seen=log)
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
        """Learn from more events, in the order of time if there are times; ids may be new.

        The first table tells what targets are like, if `fit` was not called before.
        """
        if self._run is not None and self._learner is None:
            raise CelrecError(
                f"embedding {self.plan.embedding!r} was learned from a whole log and cannot go on; "
                f"fit with embedding={LITE!r}, or begin with partial_fit, or fit all data anew"
            )
        events = EventTable(table, Names(user, item, target, time, tuple(columns)), self._names)
        if self._learner is None:
            log = events.interactions()
            plan, told = pick(log, self._options, online=True)
            learner = OnlineLearner.start(plan, list(log.columns), expected_ids=log.num_items)
            learn_events(learner, log, self._options)
            self._begin(events, told)
            self._learner = learner
        else:
            log = events.interactions(need_target=not self._learner.plan.only_positive)
            learn_events(self._learner, log, self._options)
            self._run, self._tops = None, {}
        return self

    def predict(
        self, pairs: str | Path | Table, *, user: str | None = None, item: str | None = None
    ) -> Table:
        """The table of users and items, with a column `prediction`.

        It is on the scale of the targets: a rating, or a probability. Of models that were
        trained for ranking, only the order of one user's items means something. Ids that are not
        known get what the model has for newcomers.
        """
        run = self._known()
        events = EventTable(pairs, Names(user, item), self._names)
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
        """The k best items for each user, without those that the user has seen.

        `users` is an id, or a column of them; None: all that are known. Columns: user, place (from
        1), item, score, and title where there are titles. Users that are not known get what the
        model has for newcomers. Only `allowed` items are answers, all if None, and no `banned`
        ones. Among items with equal scores, the most popular come first, or with `ties` "recency"
        the latest.
        """
        top, ids = self._top(ties, allowed, banned), self._users(users)
        return self._kind.made(top.recommend(ids, k, with_seen=with_seen))

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
        """The same, some thousand users at a time: any number of them in bounded memory."""
        top, ids = self._top(ties, allowed, banned), self._users(users)
        return map(self._kind.made, top.in_parts(ids, k, with_seen=with_seen))

    def similar(self, items: OneOrMany, k: int = 10) -> Table:
        """The k items that are most like each of some: of its cluster, then of the nearest ones.

        Columns: item, place (from 1), similar, score, and title where there are titles.
        """
        top = self._top("popularity", None, None)
        return self._kind.made(top.similar(requested_ids("items", items), k))

    def clusters(self, side: str = "items", members: int = 5) -> Table:
        """A row for each cluster, best rated first: see `cluster_summary`.

        Columns: cluster, members, interactions, mean_target and examples, some of the most active
        members.
        """
        return self._kind.made(cluster_summary(self._known(), side, members))

    def explain(self, item: Id, user: Id | None = None, neighbours: int = 5) -> Explanation:
        """Why an item is where it is: its cluster, how it came there, who else is in it.

        With a user, also the score, and what the user has seen of the cluster. `text()` is for
        people, `as_dict()` for machines.
        """
        return Explainer(self._known()).explain(item, user, neighbours)

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
        """Errors on other events and, with `k`, how good the best k items are.

        As `celrec evaluate --json` prints them. Users like what has a target from `relevant` on;
        if it is None a 1 of 0 and 1, else `positive`, else a rating not below the mean of all.
        """
        run = self._known()
        events = EventTable(table, Names(user, item, target, time), self._names)
        log = events.interactions(need_target=not run.plan.only_positive)
        return evaluate(run, run.plan.prepared(log), k=k, relevant=relevant)

    def save(self, path: str | Path) -> None:
        """Write a run folder that every `celrec` command works on; a run there is replaced.

        One that learns online is written as an online run, that can go on.
        """
        run = self._known()
        if self._learner is None:
            keep_run(path, run)
        else:
            source = self._source or self._stream_source(Path(path))
            OnlineRun.keep(path, self._learner, source, offset=self._offset, notes=self._notes)

    @classmethod
    def load(cls, path: str | Path) -> Recommender:
        """Read what `save`, `celrec train --out` or `celrec online --run` wrote.

        Of what the program trained, all options are taken for given.
        """
        kept = load_estimator(path)
        source = kept.run.source
        made = cls(**source.get("options", asdict(kept.run.plan)))
        made._told = source.get("picked", "nothing was picked: the run was trained by other means")
        made._run, made._learner = kept.run, kept.learner
        made._source, made._offset, made._notes = source, kept.offset, kept.notes
        reading = source.get("reading", {})
        roles = {role: reading.get(role) for role in ROLES}
        made._names = Names(**roles, columns=tuple(reading.get("columns", ())))
        return made

    def _begin(self, events: EventTable, told: str) -> None:
        """Forget what was learned before."""
        self._run, self._learner, self._tops = None, None, {}
        self._source, self._offset, self._notes = {}, None, {}
        self._names, self._kind, self._told = events.names, events.kind, told

    def _known(self) -> Run:
        """What there is to ask."""
        if self._run is None:
            if self._learner is None:
                raise CelrecError("the recommender has learned nothing yet; call fit first")
            learned = {"events": self._learner.events, "rejected": 0, "late": 0}
            self._run = self._learner.run(self._source, learned)
        return self._run

    def _top(self, ties: str, allowed: Ids | None, banned: Ids | None) -> TopItems:
        run = self._known()
        if allowed is None and banned is None:
            if ties not in self._tops:
                self._tops[ties] = TopItems(run, ties=ties)
            return self._tops[ties]
        only = {"allowed": allowed, "banned": banned}
        ids = {n: requested_ids(n, values) for n, values in only.items() if values is not None}
        return TopItems(run, ties=ties, **ids)

    def _users(self, users: OneOrMany | None) -> pl.Series:
        return (
            self._known().users.get_column("id") if users is None else requested_ids("users", users)
        )

    def _about(self) -> dict[str, Any]:
        return {"options": self._options, "picked": self._told}

    def _stream_source(self, place: Path) -> dict[str, Any]:
        """What `celrec online` goes on by."""
        plan, names = self.plan, self._names or Names()
        asked = asked_of(plan, names._asdict())
        return {**self._about(), **stream_source(asked, plan, place.resolve().name)}
