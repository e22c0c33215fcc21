"""What goes in and what comes out: the shapes of all requests and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from celrec.service.guard import (
    LARGEST_TARGET,
    LONGEST_ID,
    MOST_ANSWERS,
    MOST_ROWS,
    MOST_USERS,
)

_INT64 = 2**63

Number: TypeAlias = Annotated[StrictInt, Field(ge=-_INT64, le=_INT64 - 1)]
# Without NUL, which other programs take for the end of a text.
Text: TypeAlias = Annotated[
    StrictStr, Field(min_length=1, max_length=LONGEST_ID, pattern=r"^[^\x00]+$")
]
Id: TypeAlias = Number | Text
"""An id as the log has it."""
Many: TypeAlias = Annotated[int, Field(ge=1, le=MOST_ANSWERS)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Problem(_Message):
    """What is wrong with a request, or why it cannot be answered now."""

    error: str = Field(description="One line that names what is wrong and what helps.")


class Event(_Message):
    """Something that a user had to do with an item."""

    user: Id
    item: Id
    target: float | None = Field(
        default=None,
        ge=-LARGEST_TARGET,
        le=LARGEST_TARGET,
        allow_inf_nan=False,
        description="A rating, or 0 or 1. Where a run learns conversions, 1 if not given.",
    )
    timestamp: Number | None = Field(
        default=None,
        description="Seconds, milli-, micro- or nanoseconds since 1970, as the size tells; the "
        "time at which it came if not given.",
    )
    columns: dict[Text, Id] = Field(
        default_factory=dict, description="Further ids, by the names of the run's columns."
    )


class EventBatch(_Message):
    """Events in the order in which they happened."""

    events: list[Event] = Field(min_length=1, max_length=MOST_ROWS)


class Accepted(_Message):
    """The events are on the disk."""

    accepted: int
    last: int = Field(description="They are in every answer with at least as many `learned`.")


class Pair(_Message):
    """A user and an item."""

    user: Id
    item: Id


class PairBatch(_Message):
    """Pairs to be scored."""

    pairs: list[Pair] = Field(min_length=1, max_length=MOST_ROWS)


class Scores(_Message):
    """What is predicted for each pair, in their order."""

    version: int
    scores: list[float]


class Wanted(_Message):
    """Users who want recommendations."""

    users: list[Id] = Field(min_length=1, max_length=MOST_USERS)
    k: Many = 10
    with_seen: bool = Field(default=False, description="Also what a user has seen already.")
    allowed: list[Id] | None = Field(
        default=None, min_length=1, max_length=MOST_ROWS, description="No other items."
    )
    banned: list[Id] | None = Field(
        default=None, max_length=MOST_ROWS, description="None of these items."
    )


class Answer(_Message):
    """An item, best first."""

    item: int | str
    score: float
    title: str | None = None
    cluster: int | None = None


class Recommended(_Message):
    """What is recommended to one user."""

    version: int
    learned: int = Field(description="How many events of the service are in it.")
    user: int | str
    known: bool = Field(description="If not, this is what the model has for newcomers.")
    items: list[Answer]


class RecommendedToMany(_Message):
    """What is recommended to each user, in their order."""

    version: int
    learned: int
    users: list[Recommended]


class Similar(_Message):
    """The items that are most like another."""

    version: int
    item: int | str
    items: list[Answer]


class Cluster(_Message):
    """A cluster, with its most active members."""

    cluster: int
    members: int
    interactions: int
    mean_target: float | None
    examples: list[str]


class Clusters(_Message):
    """All clusters, the best rated first."""

    version: int
    side: str
    clusters: list[Cluster]


class Named(_Message):
    """An id, and what there is to say of it."""

    id: int | str
    title: str | None = None
    interactions: int
    cluster: int | None = None


class Members(_Message):
    """Some members of a cluster, the most active first."""

    version: int
    side: str
    cluster: int
    total: int
    members: list[Named]


class Found(_Message):
    """Ids that hold a text, the most active first."""

    version: int
    found: list[Named]


class Neighbour(_Message):
    """An item of the same cluster."""

    item: int | str
    title: str | None
    interactions: int


class Why(_Message):
    """Why an item is where it is."""

    version: int
    item: int | str
    title: str | None
    interactions: int
    own_row: bool
    cluster: int | None
    members: int
    path: list[int]
    weights: dict[str, float]
    neighbours: list[Neighbour]
    user: int | str | None
    score: float | None
    shared: list[Neighbour]
    told: str = Field(description="The same in words.")


class Health(_Message):
    """Whether the service is well, and which version of the model answers."""

    status: str = Field(description="ok; or degraded, if it answers and does not learn.")
    problem: str | None = Field(description="Why it does not learn.")
    run: str
    kind: str = Field(description="online, if it takes events; else offline.")
    version: int
    since: datetime = Field(description="When this version came.")
    events: int | None = Field(description="How many events the run has learned in all.")
    learned: int = Field(description="How many of those that came to the service are in it.")
    waiting: int = Field(description="Events on the disk that are still to be learned.")
    users: int
    items: int
    takes: list[str] = Field(description="The names of the further ids that events may have.")
    needs_target: bool = Field(description="Whether an event must have a target.")
    needs_key: bool = Field(description="Whether to send events takes an X-API-Key.")
