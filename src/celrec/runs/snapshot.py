"""An online run as it is now."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import polars as pl

from celrec.data.interactions import IdColumn
from celrec.runs.online_run import OnlineRun
from celrec.runs.run_folder import Run


def snapshot(run: OnlineRun) -> Run:
    """What `load_run` would read of a checkpoint, without one: nothing of it changes any more.

    So other threads can read it while the run goes on to learn.

    >>> from pathlib import Path; from tempfile import mkdtemp
    >>> from celrec.streams.events import Events
    >>> from celrec.config.plan import Plan
    >>> first = pl.DataFrame({"user": [1], "item": ["lamp"], "target": [5.0]})
    >>> more = pl.DataFrame({"user": [1], "item": ["desk"], "target": [5.0]})
    >>> plan = Plan(embedding="cel-lite", compression="4", model="mf")
    >>> with OnlineRun.start(Path(mkdtemp(), "run"), plan) as run:
    ...     _ = run.learn(Events(first, {}))
    ...     before = snapshot(run)
    ...     _ = run.learn(Events(more, {}))
    >>> before.items["id"].to_list(), before.known.item_ids.encode(["desk"]), len(before.seen)
    (['lamp'], array([-1], dtype=int32), 1)
    """
    result = {"events": run.events, "rejected": run.rejected, "late": run.late}
    live = run.learner.run(run.source, result)
    known = live.known
    columns = {
        name: IdColumn(column.values, column.ids.copy()) for name, column in known.columns.items()
    }
    return replace(
        live,
        model=deepcopy(live.model),
        known=replace(
            known,
            user_ids=known.user_ids.copy(),
            item_ids=known.item_ids.copy(),
            columns=columns,
        ),
        users=_own(live.users),
        items=_own(live.items),
        columns={name: _own(table) for name, table in live.columns.items()},
        seen=run.seen.frozen(),
    )


def _own(table: pl.DataFrame) -> pl.DataFrame:
    """The same with counts of its own: those are the ones that the run goes on to count with."""
    counts = table.get_column("interactions").to_numpy().copy()
    return table.with_columns(interactions=pl.Series(counts))
