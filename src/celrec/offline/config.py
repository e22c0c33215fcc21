"""What offline training can be told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from celrec.cel.reassignment import Reassignment
from celrec.cel.split import Splitter
from celrec.data.interactions import Interactions
from celrec.errors import CelrecError
from celrec.offline.gradient_descent import DescentConfig, GradientDescent
from celrec.offline.grouped import own_interactions
from celrec.offline.least_squares import AlternatingLeastSquares, LeastSquaresConfig
from celrec.offline.minibatch import MinibatchConfig, MinibatchDescent
from celrec.offline.online_solver import OnlineDescent
from celrec.offline.solver import Solver
from celrec.offline.tree_admm import TreeAdmm, TreeConfig
from celrec.online.config import OnlineConfig
from celrec.recommender.factorisation import Factorisation
from celrec.recommender.id_model import IdModel
from celrec.recommender.model import Model
from celrec.runtime.communicator import Communicator


@dataclass(frozen=True, slots=True)
class Schedule:
    """When clusters split and re-form, and when training ends.

    Every `split_every` steps a cluster is split, or the share `growth` of them; 0:
    never. Members are reassigned every `reassign_every` steps up to step
    `reassign_until` (0: to the end). Training runs for `steps` steps and is judged on
    validation data every `validate_every`; it ends early after `patience` judgements
    without a new best one, once all splits are done, or with `stop_growing` even
    before: then validation data decide how many clusters there are. Without
    `validate_growing` only states that have all their clusters are judged. A judgement is
    a new best one if its error is lower by more than `least_gain` times the variance
    of the targets.
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


NOTHING, ROWS, CLUSTERS = "nothing", "rows", "clusters"
"""There is none; clusters and rows, and with them predictions; clusters alone."""


@dataclass(frozen=True, slots=True)
class OfflineConfig:
    """All that offline training of CEL can be told."""

    solver: DescentConfig | LeastSquaresConfig | MinibatchConfig | TreeConfig | OnlineConfig = (
        field(default_factory=DescentConfig)
    )
    schedule: Schedule = field(default_factory=Schedule)
    personal: Schedule = field(default_factory=Schedule)
    """For the time after rows have been personalised."""
    splitter: Splitter = field(default_factory=Splitter)
    reassignment: Reassignment = field(default_factory=Reassignment)
    criterion: str = "interactions"
    rank: int = 64
    """The length of a row, unless somebody asks for another."""
    takes_over: str = NOTHING
    """What a network takes over from a factorisation, which finds the clusters: see above."""
    seed: int = 0

    def stronger(self, factor: float) -> OfflineConfig:
        """The same with penalties so many times as strong."""
        how = self.solver
        if isinstance(how, OnlineConfig):
            return replace(self, solver=how.stronger(factor))
        if isinstance(how, (LeastSquaresConfig, TreeConfig)):
            return replace(self, solver=replace(how, strength=factor * how.strength))
        return replace(self, solver=replace(how, l2=factor * how.l2))

    def make_solver(
        self, model: Model, log: Interactions, communicator: Communicator | None = None
    ) -> Solver:
        """The solver that is asked for; several `communicator` all give the whole log."""
        communicator = communicator or Communicator.alone()
        if isinstance(model, Factorisation) and isinstance(self.solver, DescentConfig):
            return GradientDescent(
                model, own_interactions(log, communicator), self.solver, communicator
            )
        if isinstance(model, Factorisation) and isinstance(self.solver, LeastSquaresConfig):
            return AlternatingLeastSquares(
                model, own_interactions(log, communicator), self.solver, communicator
            )
        if isinstance(model, IdModel) and isinstance(self.solver, MinibatchConfig):
            _check_equal(model, communicator)
            return MinibatchDescent(model, log, self.solver, self.seed, communicator)
        if communicator.size > 1:
            raise CelrecError(
                f"{communicator.size} processes cannot train with {type(self.solver).__name__}; "
                "train in one, or take a network, or model 'nmf' or 'mf' with embedding 'cel'"
            )
        if isinstance(model, IdModel) and isinstance(self.solver, OnlineConfig):
            return OnlineDescent(model, log, replace(self.solver, seed=self.seed))
        if isinstance(model, Factorisation) and isinstance(self.solver, TreeConfig):
            return TreeAdmm(model, log, self.solver, self.seed)
        raise CelrecError(
            f"solver {type(self.solver).__name__} cannot train a {type(model).__name__}; "
            "take Minibatch or Online for a IdModel, "
            "Descent, LeastSquares or Tree for a Factorisation"
        )


def _check_equal(model: IdModel, communicator: Communicator) -> None:
    """Complain about tables that several processes would come to have different ones of."""
    for name, table in model.whole_tables.items():
        if communicator.size > 1 and table.watches:
            raise CelrecError(
                f"{communicator.size} processes cannot train {type(table).__name__} of {name}, "
                "which looks at every sample; train in one, or take another embedding"
            )
