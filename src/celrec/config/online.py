"""Configuration of online training (CEL-Lite)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from celrec.errors import CelrecError

RULES = ("adagrad", "sgd")


@dataclass(frozen=True, slots=True)
class RowDescentConfig:
    """Gradient descent on the rows of a table."""

    rule: str = "adagrad"
    """`adagrad`, or `sgd`: plain gradient descent."""
    learning_rate: float = 0.1
    first_square: float = 0.1
    """The initial value of AdaGrad's sums of squares."""
    l2: float = 0.0
    """Weight decay of each row that is looked up."""
    average: bool = True
    """Whether a row's gradients are averaged over its lookups in the batch, or summed."""
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
    """When and how ids are reassigned, and clusters are split."""

    latest: int = 20
    """The number of latest events of an id that reassignment uses (n)."""
    candidates: int = 10
    """The number of other clusters that are tried, sampled at random (m)."""
    schedule: str = "doubling"
    """Which ids are reassigned: `always`: those of each batch, at once; `doubling`: those that have
    reached 1, 2, 4, 8 … events, at the next interval."""
    every: int = 1
    """The interval in events between splits of clusters, at most an eighth of all events so far."""
    prior: float = 1.0
    """The regularisation of a row: prior/2·‖row − mean row‖²."""
    limit: Callable[[int], float] | float = 100.0
    """d: a cluster with more than 2·d events is split; a number, or a function, which must not
    fall, of the events of all known ids, each counted once."""
    merge_within: float | None = None
    """Clusters whose rows are no further apart are merged when a split needs a row; None: never."""
    own_row_above: float | None = None
    """An id with more events than this has a cluster to itself; None: no id has."""
    by_tangent: bool = True
    """Whether the outputs of a network for other rows are approximated to first order, with one
    forward pass per event for all clusters that are tried."""

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
    """Online training on a stream of events (CEL-Lite)."""

    assignment: str = "soft"
    """`hard`: every id is in one cluster, as in the paper; `soft`: its vector is the posterior mean
    of a mixture of at most `most_rows` rows."""
    batch: int = 256
    shared: RowDescentConfig = field(
        default_factory=lambda: RowDescentConfig(learning_rate=0.3, average=False)
    )
    """The rows of clusters."""
    plain: RowDescentConfig = field(default_factory=RowDescentConfig)
    """All other tables."""
    network_rate: float = 1e-3
    """Adam's learning rate for all parameters that are no table of ids."""
    spread: float = 0.5
    """The standard deviation of the initial rows of mixtures."""
    scalars: float = 0.3
    """The standard deviation of the initial `extra_columns` of a model, such as biases."""
    small: float = 0.02
    """The standard deviation of all other initial rows."""
    most_rows: int = 32
    temperature: float = 1.0
    """The divisor that makes a loss a negative log likelihood of mixtures."""
    moving: OnlineClusterConfig = field(default_factory=OnlineClusterConfig)
    replay: bool = False
    """Whether the latest events of the ids in a batch are learned again with it, in `hard`."""
    own: RowDescentConfig = field(default_factory=lambda: RowDescentConfig(l2=0.1))
    """The personal rows of ids, which are added to the shared ones."""
    beside_own: float = 1.0
    """A factor on the learning rate of shared rows in tables with personal rows."""
    own_above: int = 50
    """The number of events above which an id has a personal row."""
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
        """The configuration with all regularisation times `factor`."""
        shared = replace(self.shared, l2=factor * self.shared.l2)
        plain = replace(self.plain, l2=factor * self.plain.l2)
        return replace(
            self, shared=shared, plain=plain, own=replace(self.own, l2=factor * self.own.l2)
        )

    def faster(self, factor: float) -> OnlineConfig:
        """The configuration with all learning rates times `factor`."""

        def scaled(how: RowDescentConfig) -> RowDescentConfig:
            return replace(how, learning_rate=factor * how.learning_rate)

        return replace(
            self,
            shared=scaled(self.shared),
            plain=scaled(self.plain),
            own=scaled(self.own),
            network_rate=factor * self.network_rate,
        )
