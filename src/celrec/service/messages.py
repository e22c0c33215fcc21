"""Requests and responses of the HTTP API."""

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
# Without NUL, which ends strings in C programs.
Text: TypeAlias = Annotated[
    StrictStr, Field(min_length=1, max_length=LONGEST_ID, pattern=r"^[^\x00]+$")
]
Id: TypeAlias = Number | Text
"""An id as in the data."""
Many: TypeAlias = Annotated[int, Field(ge=1, le=MOST_ANSWERS)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Problem(_Message):
    """Why a request was not answered."""

    error: str = Field(description="One line: the problem and its remedy.")


class Event(_Message):
    """An interaction of a user with an item."""

    user: Id
    item: Id
    target: float | None = Field(
        default=None,
        ge=-LARGEST_TARGET,
        le=LARGEST_TARGET,
        allow_inf_nan=False,
        description="A rating, or 0 or 1. Default 1 for runs that learn conversions.",
    )
    timestamp: Number | None = Field(
        default=None,
        description="Seconds, milli-, micro- or nanoseconds since 1970, guessed from the size; "
        "default: the time of the request.",
    )
    columns: dict[Text, Id] = Field(
        default_factory=dict, description="Further ids, by the id columns of the run."
    )


class EventBatch(_Message):
    """Events in chronological order."""

    events: list[Event] = Field(min_length=1, max_length=MOST_ROWS)


class Accepted(_Message):
    """The events are on disk."""

    accepted: int
    last: int = Field(
        description="Answers whose `learned` is at least this number include the events."
    )


class Pair(_Message):
    """A user and an item."""

    user: Id
    item: Id


class PairBatch(_Message):
    """Pairs to score."""

    pairs: list[Pair] = Field(min_length=1, max_length=MOST_ROWS)


class Scores(_Message):
    """Predictions for pairs, in their order."""

    version: int
    scores: list[float]


class RecommendRequest(_Message):
    """Users to recommend items to."""

    users: list[Id] = Field(min_length=1, max_length=MOST_USERS)
    k: Many = 10
    with_seen: bool = Field(default=False, description="Include items that the user has seen.")
    allowed: list[Id] | None = Field(
        default=None, min_length=1, max_length=MOST_ROWS, description="Return only these items."
    )
    banned: list[Id] | None = Field(
        default=None, max_length=MOST_ROWS, description="Never return these items."
    )


class Answer(_Message):
    """A recommended item."""

    item: int | str
    score: float
    title: str | None = None
    cluster: int | None = None


class Recommended(_Message):
    """Recommendations for one user, best first."""

    version: int
    learned: int = Field(
        description="Number of events of the service that the version has learned."
    )
    user: int | str
    known: bool = Field(description="False for a new user, who gets default recommendations.")
    items: list[Answer]


class RecommendedToMany(_Message):
    """Recommendations for users, in the order of the request."""

    version: int
    learned: int
    users: list[Recommended]


class Similar(_Message):
    """The items most similar to an item, best first."""

    version: int
    item: int | str
    items: list[Answer]


class Cluster(_Message):
    """A cluster with its most active members."""

    cluster: int
    members: int
    interactions: int
    mean_target: float | None
    examples: list[str]


class Clusters(_Message):
    """All clusters, sorted by mean target, highest first."""

    version: int
    side: str
    clusters: list[Cluster]


class IdInfo(_Message):
    """An id with its title, interactions and cluster."""

    id: int | str
    title: str | None = None
    interactions: int
    cluster: int | None = None


class Members(_Message):
    """A page of the members of a cluster, the most active first."""

    version: int
    side: str
    cluster: int
    total: int
    members: list[IdInfo]


class SearchResult(_Message):
    """Ids that contain a text, the most active first."""

    version: int
    found: list[IdInfo]


class Neighbour(_Message):
    """Another item of the cluster."""

    item: int | str
    title: str | None
    interactions: int


class Explained(_Message):
    """The cluster of an item and its other members; for a user, also the score."""

    version: int
    item: int | str
    title: str | None
    interactions: int
    own_row: bool
    cluster: int | None
    members: int
    codes: list[int] = Field(description="The clusters in all levels, from the first one on.")
    path: list[int]
    weights: dict[str, float]
    neighbours: list[Neighbour]
    user: int | str | None
    score: float | None
    shared: list[Neighbour]
    text: str = Field(description="The explanation as text.")


class Health(_Message):
    """The state of the service, and the version of the model that answers."""

    status: str = Field(description="ok, or degraded if it answers without learning.")
    problem: str | None = Field(description="Why it does not learn, or cannot write checkpoints.")
    run: str
    kind: str = Field(description="online if it accepts events, else offline.")
    version: int
    since: datetime = Field(description="When this version was made.")
    events: int | None = Field(description="Number of events that the run has learned in all.")
    learned: int = Field(
        description="Number of events of the service that the version has learned."
    )
    waiting: int = Field(description="Events on disk that are not learned yet.")
    users: int
    items: int
    takes: list[str] = Field(description="Names of the further id columns that events may have.")
    needs_target: bool = Field(description="Whether an event must have a target.")
    needs_key: bool = Field(description="Whether POST /events needs the header X-API-Key.")
