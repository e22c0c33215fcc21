"""Every option once: name, type, default, range, help, and where it is an argument.

The command line, the keyword arguments of `celrec.Recommender`, the checks of `celrec.Plan`, the
settings that an online run records and the table in docs/options.md are made from `OPTIONS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from celrec.config.option import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, SEED, Option

TRAIN, COMPARE, ONLINE, SERVE, DESCRIBE = "train", "compare", "online", "serve", "data describe"
RECOMMENDER = "Recommender"
PICKED = None
"""The default of an option that is picked from the data."""
SIDES = {"items": (False, True), "users": (True, False), "both": (True, True)}
"""Which tables are compressed, users' and items', by name."""
COMPARED = "cel,full,modulo,bh,ae,prehash4,prehash,etree,jnkm,hashgnn,qr,cce,robe,tt,dhe,cafe"
"""The embeddings that are compared unless others are named."""


def _model_names() -> list[str]:
    from celrec.models.registry import model_names

    return model_names()


def _loss_names() -> Iterable[str]:
    from celrec.models.interaction import LOSSES

    return LOSSES


def _same(default: Any, *places: str) -> dict[str, Any]:
    return dict.fromkeys(places, default)


_LEARNED = (TRAIN, ONLINE, RECOMMENDER)

_PLAN = (
    Option(
        "model",
        str,
        "nmf",
        "The model: nmf (non-negative matrix factorisation), mf (matrix factorisation with "
        "biases), or a network; `celrec models` lists them.",
        {TRAIN: PICKED, COMPARE: "nmf", ONLINE: "mf", RECOMMENDER: PICKED},
        choices=_model_names,
    ),
    Option(
        "embedding",
        str,
        "cel",
        "The embedding method: cel, full, modulo, …; `celrec embeddings` lists them.",
        {TRAIN: PICKED, COMPARE: COMPARED, ONLINE: "cel-lite", RECOMMENDER: PICKED},
        details={
            COMPARE: "Several, separated by commas. The full embedding is always compared: times "
            "are relative to it.",
            ONLINE: "Others than cel-lite need --preset online.",
        },
    ),
    Option(
        "compression",
        str,
        "1%",
        "Rows of each compressed table: a share of its ids (1%), a number (40), or auto: as many "
        "as lower the validation error.",
        {TRAIN: PICKED, COMPARE: "5%,1%", ONLINE: "256", RECOMMENDER: PICKED},
        details={
            COMPARE: "Several, separated by commas.",
            ONLINE: "A share is one of --expected-ids.",
        },
    ),
    Option(
        "side",
        str,
        "items",
        "Which tables are compressed: items, users or both.",
        {TRAIN: PICKED, COMPARE: "items", ONLINE: "both", RECOMMENDER: PICKED},
        choices=lambda: SIDES,
    ),
    Option(
        "rank",
        int,
        None,
        "The embedding dimension; that of the preset if not given.",
        _same(None, COMPARE, *_LEARNED),
        range=POSITIVE,
    ),
    Option(
        "preset",
        str,
        "default",
        "Hyperparameters by name: default; for nmf and mf also least-squares or descent, for nmf "
        "paper or released; "
        "for networks clusters or scratch (take over the clusters of a factorisation, or nothing); "
        "for cel-lite hard or paper; online: learn other embeddings event by event.",
        _same("default", COMPARE, *_LEARNED),
    ),
    Option(
        "seed",
        int,
        0,
        "The random seed of splits, initial values and negative samples.",
        _same(0, COMPARE, *_LEARNED),
        range=SEED,
    ),
    Option(
        "levels",
        int,
        1,
        "The vector of an id is the sum of a row of each level; levels share the rows evenly.",
        _same(1, TRAIN, COMPARE, RECOMMENDER),
        range=AT_LEAST_ONE,
    ),
    Option(
        "start",
        str,
        None,
        "Where clusters start: full (compressed from a fit with a row for each id), warm (the same "
        "with rows for the warmest ids only, as many as the table has), one, random:N, ratings:N "
        "(bins of mean rating), genres, or a run folder. If not given: full, or for mf warm where "
        "that would take more than 4 GiB; one with other presets.",
        _same(None, TRAIN, RECOMMENDER),
    ),
    Option(
        "budget",
        str,
        None,
        "Bytes of the tables of users and items (50kB, or 2B/id), for which validation data choose "
        "rank, rows and levels.",
        _same(None, TRAIN, RECOMMENDER),
    ),
    Option(
        "frozen",
        bool,
        False,
        "Keep the initial clusters.",
        _same(False, TRAIN, RECOMMENDER),
        flag="--frozen",
    ),
    Option(
        "personalise",
        str,
        "none",
        "Which ids get a row of their own in the end: none, all, or those with more interactions "
        "than a number.",
        _same("none", *_LEARNED),
    ),
    Option(
        "loss",
        str,
        "squared-error",
        "The loss: squared-error, cross-entropy (of targets 0 and 1) or ranking (interactions "
        "above random items; not online). Factorisations that are not learned online have "
        "squared-error.",
        {TRAIN: PICKED, **_same("squared-error", COMPARE, ONLINE), RECOMMENDER: PICKED},
        choices=_loss_names,
    ),
    Option(
        "positive",
        float,
        None,
        "Targets from this one on are conversions, for cross-entropy, ranking and mmoe.",
        _same(None, COMPARE, *_LEARNED),
    ),
    Option(
        "negatives",
        int,
        0,
        "Negative sampling, for implicit feedback: each interaction has target 1, and beside it so "
        "many random items without an interaction have target 0.",
        {TRAIN: PICKED, ONLINE: 0, RECOMMENDER: PICKED},
        range=NOT_NEGATIVE,
    ),
    Option(
        "features",
        bool,
        True,
        "Whether a network has features of users and items, such as genres, as inputs.",
        _same(True, TRAIN, RECOMMENDER),
        flag="--features/--no-features",
    ),
    Option(
        "penalty",
        float,
        1.0,
        "A factor on all regularisation.",
        _same(1.0, *_LEARNED),
        range=POSITIVE,
    ),
    Option(
        "rate",
        float,
        1.0,
        "A factor on all learning rates, with embedding cel-lite or preset online.",
        _same(1.0, *_LEARNED),
        range=POSITIVE,
    ),
)
_COLUMNS = tuple(
    Option(
        f"{role}_column",
        str,
        None,
        f"The column of {plural}.",
        _same(None, TRAIN, ONLINE, DESCRIBE),
    )
    for role, plural in (
        ("user", "users"),
        ("item", "items"),
        ("target", "ratings or other targets"),
        ("timestamp", "timestamps"),
    )
)
_READING = (
    *_COLUMNS,
    Option(
        "id_column",
        list[str],
        [],
        "A further column of ids for a network, such as shops; compressed too. May be repeated.",
        _same([], TRAIN, ONLINE),
    ),
    Option(
        "drop_invalid",
        bool,
        False,
        "Skip rows that cannot be used.",
        _same(False, TRAIN, DESCRIBE),
        flag="--drop-invalid",
    ),
)
_STREAM = (
    Option(
        "expected_ids",
        int,
        None,
        "How many ids a table will have, for a compression that is a share of them.",
        {ONLINE: None},
    ),
    Option(
        "batch",
        int,
        None,
        "The batch size; that of the preset if not given.",
        {ONLINE: None},
        range=AT_LEAST_ONE,
    ),
    Option(
        "window",
        int,
        10_000,
        "Report metrics of so many events at a time, each predicted before it is learned.",
        {ONLINE: 10_000},
    ),
    Option(
        "group",
        str,
        None,
        "The consumer group at a broker; celrec- and the name of the folder if not given.",
        {ONLINE: None},
    ),
    Option(
        "evict_after",
        str,
        None,
        "Evict ids without an event for longer: a number of events, or 90d, 12h, 30m or 45s by "
        "timestamps: dates, or numbers, which are seconds below 10¹¹, milliseconds below 10¹⁴, "
        "microseconds below 10¹⁷. No id is evicted if not given.",
        {ONLINE: None},
        former_names=("forget_after",),
    ),
)
_CHECKPOINTS = (
    Option(
        "checkpoint_every",
        int,
        100_000,
        "Write a checkpoint after so many events …",
        _same(100_000, ONLINE, SERVE),
        range=AT_LEAST_ONE,
    ),
    Option(
        "checkpoint_seconds",
        float,
        60.0,
        "… or after so many seconds.",
        _same(60.0, ONLINE, SERVE),
        range=NOT_NEGATIVE,
    ),
)
OPTIONS = {one.name: one for one in (*_PLAN, *_READING, *_STREAM, *_CHECKPOINTS)}
"""All options by name."""
PLAN_OPTIONS = tuple(one.name for one in _PLAN)
"""Those that are fields of `celrec.Plan`."""
_RECORDED = {one.name for one in (*_PLAN, *_COLUMNS, OPTIONS["id_column"], *_STREAM)}


def find_option(name: str) -> Option:
    """The option of that name."""
    return OPTIONS[name]


def default(name: str) -> Any:
    """The default of an option of `Plan`."""
    return OPTIONS[name].default


def options_of(place: str) -> list[Option]:
    """The options of a command, or of `Recommender`."""
    return [option for option in OPTIONS.values() if place in option.places]


def online_defaults() -> dict[str, Any]:
    """The settings that an online run records, with their defaults.

    >>> online_defaults()["embedding"]
    'cel-lite'
    """
    return {one.name: one.places[ONLINE] for one in options_of(ONLINE) if one.name in _RECORDED}


def renamed(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded settings by the names of today.

    >>> renamed({"forget_after": "90d"})
    {'evict_after': '90d'}
    """
    names = {former: one.name for one in OPTIONS.values() for former in one.former_names}
    return {names.get(name, name): value for name, value in recorded.items()}


def given_plan_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `Plan` among some values, without those that are None."""
    return {name: values[name] for name in PLAN_OPTIONS if values.get(name) is not None}


def columns_to_read(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `celrec.read` for the columns that options name."""
    roles = {role: values[f"{role}_column"] for role in ("user", "item", "target", "timestamp")}
    return {**roles, "columns": list(values.get("id_column") or [])}
