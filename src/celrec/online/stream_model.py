"""A model for a stream of which nothing is known yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from celrec.config.building import make_model
from celrec.config.online import OnlineConfig
from celrec.config.plan import Plan
from celrec.data.id_map import IdMap
from celrec.data.interactions import Interactions
from celrec.embeddings.embedding import Embedding
from celrec.errors import CelrecError
from celrec.recommender.model import Model


def online_settings(plan: Plan) -> OnlineConfig:
    """How the plan has events learned; complains if it is not for a stream."""
    how = plan.settings().solver
    if not isinstance(how, OnlineConfig):
        raise CelrecError(
            f"embedding {plan.embedding!r} with preset {plan.preset!r} is learned from a log, not "
            "from a stream; take embedding 'cel-lite' or preset 'online'"
        )
    return replace(how, seed=plan.seed)


def stream_plan(plan: Plan, expected_ids: int | None = None) -> Plan:
    """The plan with a number of rows, as nobody knows how many ids there will be.

    >>> stream_plan(Plan(embedding="cel-lite", compression="1%"), expected_ids=2000).compression
    '20'
    """
    online_settings(plan)
    if not plan.compression.strip().endswith("%"):
        return replace(plan, compression=str(max(int(plan.compression), 1)))
    if expected_ids is None:
        raise CelrecError(
            f"compression {plan.compression!r} is a share of ids that are not known yet; give a "
            "number of rows, or how many ids are expected (expected_ids, --expected-ids)"
        )
    if expected_ids < 1:
        raise CelrecError(f"expected_ids must be positive, not {expected_ids}")
    return replace(plan, compression=str(plan.rows(expected_ids)))


def stream_model(plan: Plan, columns: Sequence[str]) -> Model:
    """An untrained model with tables as small as they may be, given what `stream_plan` gave.

    `columns` are the names of further columns of ids.
    """
    ids = int(plan.compression)
    more = {name: IdMap(np.arange(ids)) for name in columns}
    log = Interactions.without_rows(IdMap(), IdMap(), more, num_users=ids, num_items=ids)
    plan.check(log)
    model = make_model(log, plan)
    if any(type(table).grow is Embedding.grow for table in model.whole_tables.values()):
        raise CelrecError(
            f"embedding {plan.embedding!r} has to know all ids beforehand, and a stream brings "
            "new ones; take 'cel-lite'"
        )
    return model
