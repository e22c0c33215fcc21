"""Learning from events with original ids, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from celrec.config.plan import LITE, Plan
from celrec.data.columns import further
from celrec.data.interactions import Interactions
from celrec.data.seen_items import SeenItems
from celrec.errors import CelrecError
from celrec.offline.fitting import Fit
from celrec.online.eviction import Eviction, IdleTime
from celrec.online.known_ids import FittingEvents, KnownIds, ids_table
from celrec.online.make_trainer import (
    initialise_tables,
    make_trainer,
    online_settings,
    stream_model,
    stream_plan,
)
from celrec.online.trainer import Learned, OnlineTrainer
from celrec.recommender.batch import Batch
from celrec.recommender.model import Model
from celrec.recommender.negatives import Negatives
from celrec.runs.run_folder import Run, with_rows, write_run
from celrec.runs.seen_log import LATEST_SEEN, seen_in
from celrec.runtime.memory_budget import MemoryBudget
from celrec.runtime.state_file import load_state, save_state
from celrec.streams.events import Rejected

_STATE = "training.safetensors"
_PRIME = 1_000_003


class OnlineLearner:
    """A model, its ids and the state of its trainer, without a folder.

    Ids may appear at any time. The same events in the same batches give the same state, to the
    last bit. `OnlineRun` adds a folder with checkpoints.

    >>> learner = OnlineLearner.start(Plan(embedding="cel-lite", compression="4", model="mf"))
    >>> ratings = pl.DataFrame({"user": ["ann", "bob"], "item": [7, 7], "target": [4.0, 3.0]})
    >>> learned, unfit = learner.learn(ratings)
    >>> learned.targets, learner.events, learner.tables["users"].ids.ids.to_list()
    (array([4., 3.], dtype=float32), 2, ['ann', 'bob'])
    """

    def __init__(
        self,
        plan: Plan,
        model: Model,
        tables: dict[str, KnownIds],
        eviction: Eviction,
        seen: SeenItems,
        trainer: OnlineTrainer | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        """A new trainer is made, under the `budget`, if none is given."""
        self._how = online_settings(plan)
        self.plan, self.model, self.tables = plan, model, tables
        self.eviction, self.seen, self.budget = eviction, seen, budget
        self.trainer = make_trainer(self._how, model, budget) if trainer is None else trainer

    @classmethod
    def start(
        cls,
        plan: Plan,
        columns: Sequence[str] = (),
        *,
        expected_ids: int | None = None,
        evict_after: IdleTime | None = None,
        budget: MemoryBudget | None = None,
    ) -> OnlineLearner:
        """An untrained learner; arguments as for `OnlineRun.start`."""
        plan = stream_plan(plan, expected_ids)
        model = stream_model(plan, columns)
        if budget is not None:
            model.use_budget(budget)
        eviction = Eviction(evict_after)
        eviction.check(model, plan.embedding)
        moments = None if evict_after is None else np.empty(0, np.int64)
        tables = {name: KnownIds(moments=moments, budget=budget) for name in model.whole_tables}
        seen = SeenItems(LATEST_SEEN, budget)
        return cls(plan, model, tables, eviction, seen, budget=budget)

    @classmethod
    def after(cls, fitted: Fit, plan: Plan, log: Interactions, seen: Interactions) -> OnlineLearner:
        """Continue after training on a log; `seen` is all that users have seen, with its ids."""
        model, trainer = fitted.model, fitted.trainer
        if plan.embedding != LITE or trainer is None:
            raise CelrecError(
                f"embedding {plan.embedding!r} was learned from a log and cannot go on from more; "
                f"train with embedding {LITE!r}, or anew on all data"
            )
        log = log.seen()
        columns = {name: (one.ids, one.values) for name, one in log.columns.items()}
        dense = {"users": (log.user_ids, log.user), "items": (log.item_ids, log.item), **columns}
        tables = {name: KnownIds() for name in model.whole_tables}
        for name, table in tables.items():
            table.numbers(dense[name][0].ids)
            table.add(dense[name][1].astype(np.int64), log.target)
        latest = SeenItems(LATEST_SEEN)
        latest.add(*seen_in(seen).events())
        return cls(plan, model, tables, Eviction(), latest, trainer)

    @classmethod
    def load(
        cls, folder: Path, run: Run, seen: SeenItems, budget: MemoryBudget | None = None
    ) -> tuple[OnlineLearner, dict[str, Any]]:
        """The learner that `write` wrote to a folder, and its notes; `run` is loaded from there."""
        if not run.plan.online:
            raise CelrecError(f"{folder}: not an online run; name another folder")
        state = load_state(folder / _STATE, mapped=True)  # loading copies all tensors
        run.model.remember(run.known)  # no histories: the trainer has the latest items of users
        maps = {"users": run.known.user_ids, "items": run.known.item_ids}
        maps |= {name: column.ids for name, column in run.known.columns.items()}
        moments = {name: part.numpy() for name, part in state.get("moments", {}).items()}
        tables = {
            name: KnownIds(
                maps[name],
                frame.get_column("interactions").to_numpy(),
                state["sums"][name].numpy(),
                moments.get(name),
                budget,
            )
            for name, frame in run.tables.items()
        }
        eviction = Eviction.from_state(state.get("forgetting", {}))
        learner = cls(run.plan, run.model, tables, eviction, seen, budget=budget)
        learner.trainer.load_state_dict(state["trainer"])
        return learner, state["notes"]

    @property
    def events(self) -> int:
        """The number of events learned, later passes included."""
        return self.trainer.events // (1 + self.plan.negatives)

    @property
    def batch(self) -> int:
        """The batch size of the configuration."""
        return self._how.batch

    @property
    def dropped(self) -> dict[str, int]:
        """The number of evicted ids of each table."""
        return {name: self.eviction.dropped.get(name, 0) for name in self.tables}

    @property
    def known(self) -> dict[str, int]:
        """The number of known ids of each table."""
        return {name: len(table.ids) for name, table in self.tables.items()}

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows in use of each table."""
        return {name: table.num_rows for name, table in self.model.whole_tables.items()}

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes of the model, the training state, the ids and the seen items."""
        return {
            "model": sum(tensor.nbytes for tensor in self.model.state_dict().values()),
            "training": self.trainer.nbytes,
            "ids": sum(table.nbytes for table in self.tables.values()),
            "seen": self.seen.nbytes,
        }

    def learn(self, events: pl.DataFrame) -> tuple[Learned, list[Rejected]]:
        """Predict a batch of events, then learn it; also return the events that do not fit.

        The columns are those of `Events`. Negative samples follow the events in the result.
        """
        frame, targets, unfit = FittingEvents.of(events, self.plan, self.events)
        names = ["user", "item", *map(further, self.model.column_names)]
        if missing := [name for name in names if name not in frame.columns]:
            raise CelrecError(f"events have no column {missing[0]!r}; name it to the source")
        moments = self.eviction.moments(frame, self.events)
        columns = zip(self.tables.values(), frame.select(names).get_columns(), strict=True)
        numbers = [table.numbers(ids) for table, ids in columns]
        self.seen.add(*numbers[:2])
        ids, outcomes = self._with_negatives(numbers, targets)
        known = zip(self.tables.values(), ids[:2], strict=False)
        before = [table.counts_of(some) for table, some in known]
        predictions = np.empty(0, np.float32)
        if len(outcomes):
            if not self.events:
                self._begin(outcomes)
            batch = Batch.of([torch.from_numpy(one) for one in ids], torch.from_numpy(outcomes))
            predictions = self.model.loss.prediction(self.trainer.step(batch)).numpy()
            if not np.isfinite(predictions).all():
                raise CelrecError(
                    f"after {self.events:,} events predictions are not finite any more; look for "
                    "targets far from all others, and start anew without them"
                )
            for table, some in zip(self.tables.values(), numbers, strict=True):
                table.add(some, targets, moments)
            if kept := self.eviction.look(self.tables, self.trainer, self.events):
                self.seen.keep(kept.get("users"), kept.get("items"))
        return Learned(predictions, outcomes, *before), unfit

    def run(self, source: dict[str, Any], result: dict[str, Any]) -> Run:
        """The run as of now, which shares the model with the learner."""
        tables, past = self._shown(), self._past()
        ids = {name: table.ids for name, table in self.tables.items()}
        known = Interactions.without_rows(ids.pop("users"), ids.pop("items"), ids)
        if past is not None:
            self.model.remember(with_rows(known, past))
        return Run(
            *(self.model, known, tables.pop("users"), tables.pop("items"), tables),
            *(self.plan, source, result, self.seen),
            past=past,
        )

    def write(
        self,
        folder: Path,
        source: dict[str, Any],
        result: dict[str, Any],
        notes: Mapping[str, Any],
    ) -> None:
        """Write all except the seen items to an existing folder, for `load`."""
        state = {
            "trainer": self.trainer.state_dict(),
            "sums": {name: torch.from_numpy(table.sums) for name, table in self.tables.items()},
            "moments": {
                name: torch.from_numpy(table.moments)
                for name, table in self.tables.items()
                if table.moments is not None
            },
            "forgetting": self.eviction.state_dict(),
            "notes": dict(notes),
        }
        write_run(folder, self.model, self.plan, source, result, self._shown(), self._past())
        save_state(folder / _STATE, state)

    def _shown(self) -> dict[str, pl.DataFrame]:
        """The tables of ids, by name."""
        rows = self.model.whole_tables
        return {
            name: ids_table(table.ids.ids, table.counts, table.sums, rows[name])
            for name, table in self.tables.items()
        }

    def _with_negatives(
        self, ids: list[NDArray[np.int64]], targets: NDArray[np.float32]
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.float32]]:
        """The events, followed by their negative samples among the known items."""
        count = self.plan.negatives
        if not count or not len(targets):
            return ids, targets
        users = np.tile(ids[0], count)
        negatives = Negatives.of_seen(self.seen, ids[0], len(self.tables["items"].ids))
        # Each batch has its own draw, determined by the number of events before.
        generator = torch.Generator().manual_seed((self.plan.seed + self.events * _PRIME) % 2**63)
        items = negatives.draw(torch.from_numpy(users), generator).numpy()
        further_ids = [np.tile(one, 1 + count) for one in ids[2:]]
        both = [np.concatenate([ids[0], users]), np.concatenate([ids[1], items])]
        targets = np.concatenate([targets, np.zeros(len(users), np.float32)])
        return both + further_ids, targets

    def _begin(self, targets: NDArray[np.float32]) -> None:
        """Initialise the tables from the mean target of the first batch."""
        mean = float(targets.mean(dtype=np.float64))
        if self.plan.model == "nmf" and mean <= 0:
            raise CelrecError(
                f"target: the first have a mean of {mean:g}, and model 'nmf' is for positive ones; "
                "take model 'mf'"
            )
        initialise_tables(self._how, self.model, mean)
        for side in self.trainer.sides.values():
            side.begin()

    def _past(self) -> pl.DataFrame | None:
        """The latest items of each user, for a model with histories."""
        if not self.model.history_length:
            return None
        latest = self.trainer.history
        owner, columns = latest.events(np.arange(latest.num_ids))
        past = pl.DataFrame({"user": owner.astype(np.int32), "item": columns["item"]})
        return past.filter(pl.col("item") >= 0)  # others were evicted
