"""A budget of bytes for the tables of users and items: how it is written, and what it is for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from celrec.embeddings.registry import METHODS, find_method
from celrec.errors import CelrecError

if TYPE_CHECKING:
    from celrec.config.plan import Plan

_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_budget(text: str | int, ids: int) -> int:
    """The bytes of a budget such as `50kB`, `2B/id` or 50000, for so many ids.

    >>> parse_budget("50kB", 1000), parse_budget("2.5B/id", 1000)
    (50000, 2500)
    """
    parts = re.fullmatch(r"(\d+(?:\.\d+)?) *([kMG]?B)?(/id)?", str(text).strip())
    if parts is None or (parts[3] and not parts[2]):
        raise CelrecError(f"budget must be bytes such as 50kB or 2B/id, not {str(text)!r}")
    return round(float(parts[1]) * _UNITS[parts[2] or "B"] * (ids if parts[3] else 1))


def check_budget(plan: Plan) -> None:
    """Complain about a budget that the plan cannot have, or about one that is missing."""
    coded = find_method(plan.embedding).codes is not None
    if plan.budget is None:
        if find_method(plan.embedding).budget_only:
            raise CelrecError(
                f"budget is missing: tables of {plan.embedding!r} are made of a full fit within "
                "a number of bytes; give it (--budget 2B/id)"
            )
        return
    parse_budget(plan.budget, 1)
    if not coded:
        known = ", ".join(name for name, method in METHODS.items() if method.codes is not None)
        raise CelrecError(f"budget is for embeddings {known}, not {plan.embedding!r}")
    if plan.model != "mf":
        raise CelrecError(f"budget is for model 'mf', not {plan.model!r}; leave one of them out")
    if plan.levels > 1:
        raise CelrecError(f"budget chooses the levels; leave levels {plan.levels} out")
    if plan.full_fit is None:
        raise CelrecError(
            f"budget needs a full fit, which does not go with preset {plan.preset!r}, negatives, "
            "frozen clusters, another start, compression 'auto' or personalise; take preset "
            "'default' without these"
        )
