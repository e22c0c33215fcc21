"""The roles of a log's columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from celrec.errors import CelrecError

# Names in order of preference, in lower case without punctuation.
_COMMON_NAMES = {
    "user": "user userid uid customer customerid reviewer reviewerid member memberid visitor "
    "visitorid account accountid session sessionid",
    "item": "item itemid iid movie movieid product productid asin isbn book bookid article "
    "articleid song songid track trackid business businessid content contentid",
    "target": "target rating label overall score stars star bookrating click clicked conversion "
    "converted purchase purchased value",
    "timestamp": "timestamp time ts unixreviewtime datetime date eventtime createdat reviewdate "
    "reviewtime",
}
_ROLES = ("user", "item", "target", "timestamp")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a log by role; a column that is None is guessed.

    Guessing ignores case, punctuation and RecBole's `:type` suffixes. The columns of a log without
    a header are named "1", "2", … and are user, item, target and, if there are four or more,
    timestamp. A log without a target is implicit feedback; `need_target` makes that an error.

    >>> Columns().resolve(["reviewerID", "asin", "overall", "unixReviewTime"])
    Columns(user='reviewerID', item='asin', target='overall', timestamp='unixReviewTime', more=())
    >>> Columns(item="shop").resolve(["user_id:token", "shop", "label"]).roles()
    {'user': 'user_id:token', 'item': 'shop', 'target': 'label'}
    """

    user: str | None = None
    item: str | None = None
    target: str | None = None
    timestamp: str | None = None
    more: tuple[str, ...] = ()
    """Further columns of ids."""
    need_target: bool = field(default=True, repr=False)

    def resolve(self, names: Sequence[str], source: str = "table") -> Columns:
        """The columns with every role filled from `names`, except for missing optional ones."""
        positional = list(names) == [str(number + 1) for number in range(len(names))]
        found: dict[str, str | None] = {}
        for position, role in enumerate(_ROLES):
            given = getattr(self, role)
            if given is not None:
                if given not in names:
                    raise CelrecError(
                        f"{source}: no column {given!r} for the {role}; "
                        f"the columns are {_listed(names)}"
                    )
                found[role] = given
            elif positional:
                found[role] = names[position] if position < len(names) else None
            else:
                found[role] = _guess(role, names)
            needed = role != "timestamp" and (role != "target" or self.need_target)
            if found[role] is None and needed:
                raise CelrecError(
                    f"{source}: no {role} column among {_listed(names)}; "
                    f"name it with {role}=… (--{role}-column)"
                )
        for name in self.more:
            if name not in names:
                raise CelrecError(f"{source}: no column {name!r}; the columns are {_listed(names)}")
        resolved = Columns(**found, more=self.more, need_target=self.need_target)
        roles = resolved.roles()
        if len({*roles.values(), *self.more}) < len(roles) + len(self.more):
            roles |= {f"ids {number}": name for number, name in enumerate(self.more, 1)}
            raise CelrecError(f"{source}: one column is given for two roles: {roles}")
        return resolved

    def roles(self) -> dict[str, str]:
        """Column names by role, for the roles that have a column."""
        return {role: name for role in _ROLES if (name := getattr(self, role)) is not None}

    def sources(self) -> dict[str, str]:
        """Column names by role or, for further columns, by the name that readers give them."""
        return {**self.roles(), **{further(name): name for name in self.more}}


def further(name: str) -> str:
    """The readers' name of a further column, which differs from every role."""
    return f"ids:{name}"


def _guess(role: str, names: Sequence[str]) -> str | None:
    plain = {re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower()): name for name in reversed(names)}
    return next((plain[common] for common in _COMMON_NAMES[role].split() if common in plain), None)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:12])
    return shown + (f", … ({len(names)} in all)" if len(names) > 12 else "")
