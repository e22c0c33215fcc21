"""What an online run is asked for, and notes of it in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from celrec.training.plan import Plan
from celrec.training.stream_model import online_settings

DEFAULTS: dict[str, Any] = {
    "model": "mf",
    "embedding": "cel-lite",
    "preset": "default",
    "compression": "256",
    "expected_ids": None,
    "side": "both",
    "rank": None,
    "loss": "squared-error",
    "positive": None,
    "negatives": 0,
    "personalise": "none",
    "penalty": 1.0,
    "rate": 1.0,
    "seed": 0,
    "user_column": None,
    "item_column": None,
    "target_column": None,
    "timestamp_column": None,
    "id_column": [],
    "batch": None,
    "window": 10_000,
    "group": None,
    "forget_after": None,
}
"""What is taken where nothing is said, by the names of the options of `celrec online`."""
_OF_THE_PLAN = (
    *("model", "embedding", "preset", "compression", "side", "rank", "loss", "positive"),
    *("negatives", "personalise", "penalty", "rate", "seed"),
)
"""Those that go by the same name in `Plan`."""


def asked_plan(asked: Mapping[str, Any]) -> Plan:
    """The plan that is asked for."""
    return Plan(**{name: asked[name] for name in _OF_THE_PLAN})


def stream_source(asked: Mapping[str, Any], plan: Plan, name: str) -> dict[str, Any]:
    """What a run of that `name` notes of what it was asked for, and of how events are read."""
    noted = {**DEFAULTS, **asked, "rank": plan.dim}
    online = online_settings(plan)
    if noted["batch"] is None:
        noted["batch"] = online.batch
    noted["group"] = noted["group"] or f"celrec-{name}"
    roles = {role: noted[f"{role}_column"] for role in ("user", "item", "target", "timestamp")}
    reading = {**roles, "columns": noted["id_column"], "drop_invalid": True}
    return {"asked": noted, "reading": reading}


def asked_of(plan: Plan, reading: Mapping[str, Any]) -> dict[str, Any]:
    """What would have been asked for to come to this plan, with columns of these names."""
    planned = {n: value for n, value in asdict(plan).items() if n in _OF_THE_PLAN}
    columns = {f"{role}_column": reading.get(role) for role in ("user", "item", "target")}
    time, more = reading.get("timestamp"), list(reading.get("columns", ()))
    return {**planned, **columns, "timestamp_column": time, "id_column": more}
