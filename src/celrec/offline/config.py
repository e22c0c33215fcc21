"""What offline training can be told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from celrec.cel.reassignment import Reassignment
from celrec.cel.split import Splitter
from celrec.data.interactions import Interactions
from celrec.errors import CelrecError
from celrec.offline.gradient_descent import Descent, GradientDescent
from celrec.offline.grouped import own_interactions
from celrec.offline.least_squares import AlternatingLeastSquares, LeastSquares
from celrec.offline.minibatch import Minibatch, MinibatchDescent
from celrec.offline.online_solver import OnlineDescent
from celrec.offline.solver import Solver
from celrec.offline.tree_admm import Tree, TreeAdmm
from celrec.online.config import Online
from celrec.recommender.factorisation import Factorisation
from celrec.recommender.id_model import IdModel
from celrec.recommender.model import Model
from celrec.runtime.communicator import Ranks


@dataclass(frozen=True, slots=True)
class Schedule:
    """When clusters split and re-form, and when training ends.

    Every `split_every` steps a cluster is split, or the share `growth` of them; 0:
    never. Members are reassigned every `reassign_every` steps up to step
    `reassign_until` (0: to the end). Training runs for `steps` steps and is judged on
    validation data every `judge_every`; it ends early after `patience` judgements
    without a new best one, once all splits are done, or with `stop_growing` even
    before: then validation data decide how many clusters there are. Without
    `judge_growing` only states that have all their clusters are judged. A judgement is
    a new best one if its error is lower by more than `least_gain` times the variance
    of the targets.
    """

    steps: int = 2000
    split_every: int = 10
    growth: float = 0.0
    reassign_every: int = 40
    reassign_until: int = 0
    judge_every: int = 50
    patience: int = 10
    stop_growing: bool = False
    judge_growing: bool = True
    least_gain: float = 0.0

    def __post_init__(self) -> None:
        for name in ("steps", "judge_every", "patience"):
            if getattr(self, name) < 1:
                raise CelrecError(f"{name} must be positive, not {getattr(self, name)}")
        if self.stop_growing and not self.judge_growing:
            raise CelrecError(
                "stop_growing is for states that still grow, and judge_growing=False leaves them "
                "unjudged; take one of the two"
            )


NOTHING, ROWS, CLUSTERS = "nothing", "rows", "clusters"
"""There is none; clusters and rows, and with them predictions; clusters alone."""


@dataclass(frozen=True, slots=True)
class Offline:
    """All that offline training of CEL can be told."""

    solver: Descent | LeastSquares | Minibatch | Tree | Online = field(default_factory=Descent)
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

    def stronger(self, factor: float) -> Offline:
        """The same with penalties so many times as strong."""
        how = self.solver
        if isinstance(how, Online):
            return replace(self, solver=how.stronger(factor))
        if isinstance(how, (LeastSquares, Tree)):
            return replace(self, solver=replace(how, strength=factor * how.strength))
        return replace(self, solver=replace(how, l2=factor * how.l2))

    def make_solver(self, model: Model, log: Interactions, ranks: Ranks | None = None) -> Solver:
        """The solver that is asked for; several `ranks` all give the whole log."""
        ranks = ranks or Ranks.alone()
        if isinstance(model, Factorisation) and isinstance(self.solver, Descent):
            return GradientDescent(model, own_interactions(log, ranks), self.solver, ranks)
        if isinstance(model, Factorisation) and isinstance(self.solver, LeastSquares):
            return AlternatingLeastSquares(model, own_interactions(log, ranks), self.solver, ranks)
        if isinstance(model, IdModel) and isinstance(self.solver, Minibatch):
            _check_alike(model, ranks)
            return MinibatchDescent(model, log, self.solver, self.seed, ranks)
        if ranks.size > 1:
            raise CelrecError(
                f"{ranks.size} processes cannot train with {type(self.solver).__name__} together; "
                "train in one, or take a network, or model 'nmf' or 'mf' with embedding 'cel'"
            )
        if isinstance(model, IdModel) and isinstance(self.solver, Online):
            return OnlineDescent(model, log, replace(self.solver, seed=self.seed))
        if isinstance(model, Factorisation) and isinstance(self.solver, Tree):
            return TreeAdmm(model, log, self.solver, self.seed)
        raise CelrecError(
            f"solver {type(self.solver).__name__} cannot train a {type(model).__name__}; "
            "take Minibatch or Online for a IdModel, "
            "Descent, LeastSquares or Tree for a Factorisation"
        )


def _check_alike(model: IdModel, ranks: Ranks) -> None:
    """Complain about tables that several processes would come to have different ones of."""
    for name, table in model.whole_tables.items():
        if ranks.size > 1 and table.watches:
            raise CelrecError(
                f"{ranks.size} processes cannot train {type(table).__name__} of {name} together, "
                "which looks at every sample; train in one, or take another embedding"
            )
