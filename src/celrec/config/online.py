"""Configuration of online training (CEL-Lite)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from celrec.errors import CelrecError

RULES = ("adagrad", "sgd")


@dataclass(frozen=True, slots=True)
class RowDescentConfig:
    """How rows descend."""

    rule: str = "adagrad"
    """`adagrad`, or `sgd`: plain gradient descent."""
    learning_rate: float = 0.1
    first_square: float = 0.1
    """What AdaGrad's sums of squares begin with."""
    l2: float = 0.0
    """The pull to 0 of each row that is looked up."""
    average: bool = True
    """Whether the gradients of a row are averaged over its lookups in the batch, or summed."""
    non_negative: bool = False

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise CelrecError(f"rule must be one of {', '.join(RULES)}, not {self.rule!r}")
        for name in ("learning_rate", "first_square"):
            if not getattr(self, name) > 0:
                raise CelrecError(f"{name} must be positive, not {getattr(self, name)}")
        if not self.l2 >= 0:
            raise CelrecError(f"l2 must not be negative, not {self.l2}")


SCHEDULES = ("always", "doubling")


@dataclass(frozen=True, slots=True)
class OnlineClusterConfig:
    """When and how ids move between clusters, and clusters split."""

    latest: int = 20
    """By how many of its latest events an id is judged (n)."""
    candidates: int = 10
    """How many other clusters are tried, drawn at random (m)."""
    schedule: str = "doubling"
    """Which ids are judged: `always` all of a batch, at once; `doubling` those that have come to
    1, 2, 4, 8 … events, at the next look."""
    every: int = 1
    """How many events there are from one look to the next, each after a batch: then clusters that
    have come to too many events are split. An eighth of all events so far, where that is less."""
    prior: float = 1.0
    """What is added to the loss of a row: prior/2·‖row − mean row‖²."""
    limit: Callable[[int], float] | float = 100.0
    """d: a cluster with more than 2·d events is split; a number, or a function, which must not
    fall, of the events of all known ids, each counted once."""
    merge_within: float | None = None
    """When all rows are in use and a cluster is to be split, two rows that are no further apart
    than this become one, to make room; None: never."""
    own_row_above: float | None = None
    """An id with more events than this has a cluster to itself; None: no id has."""
    by_tangent: bool = True
    """Whether a network is judged by what its outputs are to first order in the vector, which takes
    one look at each event for all clusters that are tried, or by all of its outputs."""

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise CelrecError(
                f"schedule must be one of {', '.join(SCHEDULES)}, not {self.schedule!r}"
            )
        if not self.every >= 1:
            raise CelrecError(f"every must be 1 or more, not {self.every}")
        for name in ("latest", "candidates", "prior"):
            if not getattr(self, name) >= 0:
                raise CelrecError(f"{name} must not be negative, not {getattr(self, name)}")


ASSIGNMENTS = ("soft", "hard")


@dataclass(frozen=True, slots=True)
class OnlineConfig:
    """How a recommender learns from events in their order (CEL-Lite)."""

    assignment: str = "soft"
    """`hard`: every id is in one cluster, as the paper has it; `soft`: it is where the evidence
    puts it, between as many rows as `most_rows`."""
    batch: int = 256
    shared: RowDescentConfig = field(
        default_factory=lambda: RowDescentConfig(learning_rate=0.3, average=False)
    )
    """For rows of clusters."""
    plain: RowDescentConfig = field(default_factory=RowDescentConfig)
    """For all other tables."""
    network_rate: float = 1e-3
    """Adam's learning rate for all that is no table of ids."""
    spread: float = 0.5
    """The standard deviation of what rows that mixtures are made of begin with."""
    scalars: float = 0.3
    """The same for scalars that a model wants of every id, such as biases."""
    small: float = 0.02
    """The same for all other rows."""
    most_rows: int = 32
    temperature: float = 1.0
    """What a loss is divided by to be a log likelihood: see `MixtureTrainer`."""
    moving: OnlineClusterConfig = field(default_factory=OnlineClusterConfig)
    replay: bool = False
    """Whether the latest events of the ids in a batch are learned with it, in `hard`."""
    own: RowDescentConfig = field(default_factory=lambda: RowDescentConfig(l2=0.1))
    """For what ids differ by from what they share, in tables where they may."""
    beside_own: float = 1.0
    """How many times as high the learning rate of shared rows is in such tables."""
    own_above: int = 50
    """How many events an id must have had to differ."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.assignment not in ASSIGNMENTS:
            raise CelrecError(
                f"assignment must be one of {', '.join(ASSIGNMENTS)}, not {self.assignment!r}"
            )
        if self.replay and self.assignment != "hard":
            raise CelrecError("replay needs assignment 'hard': only there are events kept")
        for name in (
            *("batch", "network_rate", "spread", "small", "most_rows", "temperature"),
            "beside_own",
        ):
            if not getattr(self, name) > 0:
                raise CelrecError(f"{name} must be positive, not {getattr(self, name)}")

    def stronger(self, factor: float) -> OnlineConfig:
        """The same with penalties so many times as strong."""
        shared = replace(self.shared, l2=factor * self.shared.l2)
        plain = replace(self.plain, l2=factor * self.plain.l2)
        return replace(
            self, shared=shared, plain=plain, own=replace(self.own, l2=factor * self.own.l2)
        )

    def faster(self, factor: float) -> OnlineConfig:
        """The same with learning rates so many times as high."""

        def scaled(how: RowDescentConfig) -> RowDescentConfig:
            return replace(how, learning_rate=factor * how.learning_rate)

        return replace(
            self,
            shared=scaled(self.shared),
            plain=scaled(self.plain),
            own=scaled(self.own),
            network_rate=factor * self.network_rate,
        )
