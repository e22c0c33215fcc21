"""The options that are not given, picked from the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from celrec.config.plan import LITE, Plan
from celrec.data.interactions import Interactions
from celrec.errors import CelrecError

_OPTIONS = tuple(field.name for field in fields(Plan))
_SHARE, _LEAST_ROWS, _MOST_ROWS = "5%", "20", "1000"
_FEW_IDS, _MANY_IDS = 400, 20_000
_MANY_EVENTS = 1_000_000
_ONLINE = {"embedding": LITE, "side": "both", "compression": "32"}
_MF = {"model": "mf", **_ONLINE}


class Kind(NamedTuple):
    """A kind of targets, and plans for it: the first that goes with the given options is picked.

    They were the best clustered ones on validation data of MovieLens-100K: as ratings, as
    conversions (ratings of 4 and 5), and as implicit feedback.
    """

    description: str
    offline: tuple[Mapping[str, Any], ...]
    online: tuple[Mapping[str, Any], ...]

    @classmethod
    def ratings(cls, rows: str = _SHARE, *, positive: bool = True) -> Kind:
        """Any numbers, or `positive` ones only."""
        factors = ({"model": "nmf", "rate": 0.5, **_ONLINE},) if positive else ()
        return cls(
            "targets are ratings: errors are squared",
            ({"model": "mf", "compression": rows}, {"compression": rows}),
            (*factors, _MF, _ONLINE),
        )

    @classmethod
    def conversions(cls, rows: str = _SHARE) -> Kind:
        """Zeros and ones."""
        loss = {"loss": "cross-entropy"}
        others = cls.ratings(rows, positive=False)
        return cls(
            "targets are 0 and 1: the loss is cross-entropy",
            (
                {**_MF, **loss},
                {"model": "deepfm", "compression": rows, **loss},
                {"compression": rows, **loss},
                *others.offline,
            ),
            ({**_MF, **loss}, {**_ONLINE, **loss}, *others.online),
        )

    @classmethod
    def events(cls, rows: str = _SHARE, events: int = 0) -> Kind:
        """Implicit feedback.

        More negative samples are better, but those of a long log take time and memory.
        """
        drawn = {"negatives": 10 if events <= _MANY_EVENTS else 3}
        beside, loss = {"negatives": 10}, {"loss": "cross-entropy"}
        return cls(
            "all targets are equal: they are implicit feedback, learned with negative sampling "
            "(name the column of ratings, target or --target-column, if there is one)",
            (
                {"model": "mf", "compression": rows, **drawn},
                {"compression": rows, **drawn},
                {**_MF, "negatives": 4},
                {"model": "deepfm", "compression": rows, **drawn},
                {"model": "deepfm", "compression": rows},
                {"compression": rows},
            ),
            (
                {**_MF, **beside, **loss},
                {**_MF, **beside},
                {**_ONLINE, **beside, **loss},
                _ONLINE,
            ),
        )


class Picked(NamedTuple):
    """A plan, and why."""

    plan: Plan
    reason: str
    """In words, a line or two."""


def pick(log: Interactions, given: Mapping[str, Any], *, online: bool = False) -> Picked:
    """A plan for a log with the `given` options, by the names of `Plan`.

    With `online` it is one for a stream of events.

    >>> import celrec
    >>> clicks = celrec.read({"user": [1, 1, 2], "item": ["a", "b", "a"]})
    >>> plan, reason = pick(clicks, {"seed": 3})
    >>> plan.model, plan.negatives, plan.seed
    ('mf', 10, 3)
    """
    check_options(given)
    kind = _kind(log, given)
    plan = _first(given, kind.online if online else kind.offline, network=bool(log.columns))
    return Picked(plan, f"{kind.description}\n{_words(plan, given)}")


def check_options(given: Mapping[str, Any]) -> None:
    """Complain about options that no plan can have, before there are data."""
    if unknown := [name for name in given if name not in _OPTIONS]:
        raise CelrecError(f"{unknown[0]!r} is no option; there are {', '.join(_OPTIONS)}")
    kinds = (Kind.ratings(), Kind.conversions(), Kind.events())
    _first(given, [one for kind in kinds for one in (*kind.offline, *kind.online)])


def _kind(log: Interactions, given: Mapping[str, Any]) -> Kind:
    """The kind of targets that the given options imply, else the values of the targets."""
    loss, targets = given.get("loss"), log.target
    few, many = log.num_items < _FEW_IDS, log.num_items > _MANY_IDS
    rows = _LEAST_ROWS if few else _MOST_ROWS if many else _SHARE
    if given.get("negatives") or loss == "ranking":
        return Kind.events(rows, len(log))
    positive = bool(targets.min() > 0)
    if loss == "squared-error":
        return Kind.ratings(rows, positive=positive)
    if given.get("positive") is not None:
        return Kind.conversions(rows)
    if targets.min() == targets.max():
        return Kind.events(rows, len(log))
    if loss == "cross-entropy" or np.isin(targets, (0, 1)).all():
        return Kind.conversions(rows)
    return Kind.ratings(rows, positive=positive)


def _first(
    given: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]], *, network: bool = False
) -> Plan:
    """The first candidate that goes with the given options; those alone if none does.

    Further columns of ids need a `network`.
    """
    for candidate in candidates:
        model = {"model": "deepfm"} if network else {}
        try:
            return Plan(**{**candidate, **model, **given})
        except CelrecError:
            continue
    return Plan(**given)


def _words(plan: Plan, given: Mapping[str, Any]) -> str:
    words: dict[str, Any] = {
        "model": plan.model,
        "embedding": plan.embedding,
        "compression": plan.compression,
    }
    words |= {"side": plan.side, "loss": plan.loss, "negatives": plan.negatives}
    words |= {"rate": "" if plan.rate == 1 else plan.rate}
    if plan.budget is not None:  # which says what both tables may have
        words |= {"compression": "", "side": ""}
    words |= {"levels": "" if plan.levels == 1 else plan.levels}
    shown = [f"{name} {value}" for name, value in words.items() if value and name not in given]
    return f"picked: {', '.join(shown) or 'nothing, all were given'}"
