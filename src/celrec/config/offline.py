"""Configuration of offline training: the schedule, and each solver's hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch.optim import Optimizer

from celrec.cel.levels import LevelsConfig
from celrec.cel.reassignment import Reassignment
from celrec.cel.split import Splitter
from celrec.config.online import OnlineConfig
from celrec.errors import CelrecError

OPTIMISERS: dict[str, type[Optimizer]] = {
    "gd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
}
CODES = ("cel", "joint", "k-means", "weighted-k-means")
PROJECTIONS = ("clip", "abs", "none")


@dataclass(frozen=True, slots=True)
class Schedule:
    """When clusters are split and reassigned, and early stopping.

    Every `split_every` steps a cluster is split, or the share `growth` of them (0: never). Members
    are reassigned every `reassign_every` steps up to step `reassign_until` (0: to the end).
    Training has at most `steps` steps, with an evaluation on validation data every
    `validate_every`. It stops after `patience` evaluations without an improvement by more than
    `least_gain` times the variance of the targets: once all splits are done, or with `stop_growing`
    before, so that validation data choose the number of clusters. Without `validate_growing`, only
    states with all clusters are evaluated.
    """

    steps: int = 2000
    split_every: int = 10
    growth: float = 0.0
    reassign_every: int = 40
    reassign_until: int = 0
    validate_every: int = 50
    patience: int = 10
    stop_growing: bool = False
    validate_growing: bool = True
    least_gain: float = 0.0

    def __post_init__(self) -> None:
        for name in ("steps", "validate_every", "patience"):
            if getattr(self, name) < 1:
                raise CelrecError(f"{name} must be positive, not {getattr(self, name)}")
        if self.stop_growing and not self.validate_growing:
            raise CelrecError(
                "stop_growing needs validation while clusters grow, but validate_growing=False; "
                "take one of the two"
            )


@dataclass(frozen=True, slots=True)
class DescentConfig:
    """Full-batch gradient descent for factorisations.

    The loss is L = Σ (y − x)² plus for each table λ/2·Σ‖row‖² and, for clustered tables,
    `shrink_to_mean`·Σ‖row − mean row‖² and `shrink_to_parent`·Σ‖row − its parent's row‖² along the
    split tree, and for mixed tables `pull_to_anchor`/2·Σ‖row − the row it comes from‖². With
    `average`, the gradient of a shared row is divided by the number of its ids, with
    `penalty_inside` that of the penalties too.

    With `bounded`, the learning rate of a row is at most half of 1/curvature (half, since
    both tables move at once), so that the steps of very active users and popular clusters
    do not overshoot. With `per_row_start`, each initial row is divided by its own largest value
    instead of the table's.
    """

    optimiser: str = "gd"
    learning_rate: float = 1e-4
    l2: float = 1.0
    shrink_to_mean: float = 0.0
    shrink_to_parent: float = 0.0
    average: bool = True
    penalty_inside: bool = True
    projection: str = "clip"
    bounded: bool = False
    pull_to_anchor: float = 50.0
    l2_biases: float = 5.0
    per_row_start: bool = False

    def __post_init__(self) -> None:
        for name, value, known in (
            ("optimiser", self.optimiser, tuple(OPTIMISERS)),
            ("projection", self.projection, PROJECTIONS),
        ):
            if value not in known:
                raise CelrecError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        for name in ("pull_to_anchor", "l2_biases"):
            if not getattr(self, name) >= 0:
                raise CelrecError(f"{name} must not be negative, not {getattr(self, name)}")

    def stronger(self, factor: float) -> DescentConfig:
        """The configuration with all regularisation times `factor`."""
        return replace(self, l2=factor * self.l2)


@dataclass(frozen=True, slots=True)
class ComposedConfig:
    """Descent for composed tables, whose ids do not have one row each.

    With the other side fixed, the squared error depends on a vector v only by its normal
    equations, vᵀ·D·v − 2·dᵀ·v. They are computed once per sweep; then `steps` steps of Adam with
    this `learning_rate` and falling ones lower their sum over all ids plus
    σ²·`l2`·‖parameters‖², without a pass over the interactions.
    """

    steps: int = 20
    learning_rate: float = 0.05
    l2: float = 0.1
    decay: float = 0.97
    """The factor on the learning rate after each sweep."""

    def __post_init__(self) -> None:
        for name in ("steps", "learning_rate"):
            if not getattr(self, name) > 0:
                raise CelrecError(f"{name} must be positive, not {getattr(self, name)}")
        if not self.l2 >= 0:
            raise CelrecError(f"l2 must not be negative, not {self.l2}")
        if not 0 < self.decay <= 1:
            raise CelrecError(f"decay must lie in (0, 1], not {self.decay}")


@dataclass(frozen=True, slots=True)
class LeastSquaresConfig:
    """Alternating least squares.

    Given the other side, the rows of one side are ridge solutions

        b = (Σ n·a·aᵀ + Λ)⁻¹ (Σ s·a + Λ·anchor)

    over pairs of rows with n interactions and a sum of residuals s. The anchor of a
    personalised row is the row that it comes from, that of others the mean row of
    their table as it was, and that of clusters 0. Λ is `l2_users`·I for users and
    σ²·`l2_items`·I for items, σ² being the variance of the targets: so users carry
    the unit of the ratings, and the scale of the ratings does not matter.

    With `uncertainty` this is variational Bayes: a·aᵀ becomes a·aᵀ + Cov(a), since
    a row with little data is uncertain; σ² becomes
    the expected error after each sweep, and Λ = σ²·E[(b − anchor)(b − anchor)ᵀ]⁻¹
    for tables that are not clustered. Covariances have `dim`² numbers per row.

    `non_negative` keeps all values at or above 0, by coordinate descent. Composed tables
    learn from the same equations, as `composed` says.
    """

    l2_users: float = 5.0
    l2_items: float = 1.0
    l2_biases: float = 5.0
    uncertainty: bool = True
    non_negative: bool = False
    composed: ComposedConfig = field(default_factory=ComposedConfig)
    strength: float = 1.0
    """A factor on σ², and so on all regularisation."""

    def __post_init__(self) -> None:
        for name in ("l2_users", "l2_items", "strength"):
            if not getattr(self, name) > 0:
                raise CelrecError(f"{name} must be positive, not {getattr(self, name)}")
        if not self.l2_biases >= 0:
            raise CelrecError(f"l2_biases must not be negative, not {self.l2_biases}")

    def stronger(self, factor: float) -> LeastSquaresConfig:
        """The configuration with all regularisation times `factor`."""
        return replace(self, strength=factor * self.strength)


@dataclass(frozen=True, slots=True)
class GibbsConfig:
    """Gibbs sampling of Bayesian matrix factorisation, for full tables with biases.

    A step draws all rows, and the means and precisions of their priors. The first `burn_in`
    draws are not in the mean that is kept. A priori the mean of the rows of a side is worth
    `prior_rows` rows of zeros, and σ² as many interactions with the variance of the targets.
    """

    burn_in: int = 20
    prior_rows: float = 2.0
    strength: float = 1.0
    """A factor on σ², and so on all regularisation."""

    def __post_init__(self) -> None:
        if self.burn_in < 0:
            raise CelrecError(f"burn_in must not be negative, not {self.burn_in}")
        for name in ("prior_rows", "strength"):
            if not getattr(self, name) > 0:
                raise CelrecError(f"{name} must be positive, not {getattr(self, name)}")

    def stronger(self, factor: float) -> GibbsConfig:
        """The configuration with all regularisation times `factor`."""
        return replace(self, strength=factor * self.strength)


@dataclass(frozen=True, slots=True)
class MinibatchConfig:
    """Adam on mini-batches, for any model.

    A step is a round: the share 1/`rounds` of the interactions, in batches of `batch`, or
    of fewer where there are few, so that a round has at least four. The loss of a batch
    is the mean over its interactions plus `l2`·‖row − anchor‖² for the row of each id
    that is looked up as user, item or in a further column. The anchor is the row that
    training starts from, 0 without pretraining. The trained model has the exponential moving
    average of its parameters over steps, with decay `averaging`.

    Reassignment tries `candidates` clusters on at most `per_id` interactions of each id.
    """

    learning_rate: float = 5e-3
    batch: int = 2048
    rounds: int = 10
    l2: float = 0.0
    averaging: float = 0.999
    spread: float = 0.05
    """The standard deviation of the initial rows."""
    per_id: int = 15
    candidates: int = 5

    def __post_init__(self) -> None:
        for name in ("learning_rate", "batch", "rounds", "spread", "per_id", "candidates"):
            if not getattr(self, name) > 0:
                raise CelrecError(f"{name} must be positive, not {getattr(self, name)}")
        if not self.l2 >= 0:
            raise CelrecError(f"l2 must not be negative, not {self.l2}")
        if not 0 <= self.averaging < 1:
            raise CelrecError(f"averaging must lie in [0, 1), not {self.averaging}")

    def stronger(self, factor: float) -> MinibatchConfig:
        """The configuration with all regularisation times `factor`."""
        return replace(self, l2=factor * self.l2)


@dataclass(frozen=True, slots=True)
class TreeConfig:
    """ADMM for eTree and JNKM: users, leaves and tree are learned together.

    One step lowers, over the users' rows a, then the items' leaves b, then the tree,

        ½·Σ (x − a·b)² + λ/2·Σ‖a‖² + μ/2·(Σ_j ‖b_j − c_{s(j)}‖² + Σ_k ‖c_k − r‖²)

    over a, b ≥ 0; λ is `l2_users`, μ the `pull` of the table. Rows are found by at most
    `iterations` of ADMM, whose duals are kept from step to step. In the first `warm_up` steps
    there is no tree and leaves are regularised by λ; then k-means++ initialises it.
    """

    l2_users: float = 20.0
    iterations: int = 5
    tolerance: float = 1e-3
    warm_up: int = 10
    strength: float = 1.0
    """A factor on λ and μ."""

    def __post_init__(self) -> None:
        for name in ("l2_users", "iterations", "tolerance", "strength"):
            if not getattr(self, name) > 0:
                raise CelrecError(f"{name} must be positive, not {getattr(self, name)}")

    def stronger(self, factor: float) -> TreeConfig:
        """The configuration with all regularisation times `factor`."""
        return replace(self, strength=factor * self.strength)


@dataclass(frozen=True, slots=True)
class CompressionConfig:
    """How a fitted factorisation is compressed.

    After the `levels` have grown, `rounds` sweeps refine users and items in turn. An id weighs
    as many interactions as it has, and `prior` more.

    With `codes` "cel", ids are grouped by what groups cost the predictions, by splits and
    reassignment, and with "joint" by a search over all levels at once; with "k-means" by
    k-means of the fitted rows, or with "weighted-k-means" of rows that weigh as their ids do.
    """

    levels: LevelsConfig = field(default_factory=LevelsConfig)
    rounds: int = 8
    prior: float = 10.0
    codes: str = "cel"

    def __post_init__(self) -> None:
        if self.codes not in CODES:
            raise CelrecError(f"codes must be one of {', '.join(CODES)}, not {self.codes!r}")
        if self.rounds < 0:
            raise CelrecError(f"rounds must not be negative, not {self.rounds}")
        if not self.prior > 0:
            raise CelrecError(f"prior must be positive, not {self.prior}")


NOTHING, ROWS, CLUSTERS = "nothing", "rows", "clusters"
"""What a network takes over from a factorisation: nothing, clusters and rows, or clusters."""


@dataclass(frozen=True, slots=True)
class OfflineConfig:
    """The configuration of offline training."""

    solver: (
        DescentConfig
        | LeastSquaresConfig
        | GibbsConfig
        | MinibatchConfig
        | TreeConfig
        | OnlineConfig
    ) = field(default_factory=DescentConfig)
    schedule: Schedule = field(default_factory=Schedule)
    personal: Schedule = field(default_factory=Schedule)
    """The schedule after personalisation."""
    splitter: Splitter = field(default_factory=Splitter)
    reassignment: Reassignment = field(default_factory=Reassignment)
    criterion: str = "interactions"
    rank: int = 64
    """The embedding dimension, unless the plan has another."""
    compression: CompressionConfig | None = None
    """How tables are compressed after they were fitted in full; None: they are trained as they
    are."""
    takes_over: str = NOTHING
    """`nothing`, `rows` or `clusters`: what a network takes over from a factorisation."""
    seed: int = 0

    def stronger(self, factor: float) -> OfflineConfig:
        """The configuration with all regularisation times `factor`."""
        return replace(self, solver=self.solver.stronger(factor))
