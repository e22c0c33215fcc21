"""The solver of an offline configuration."""

from __future__ import annotations

from dataclasses import replace

from celrec.config.offline import (
    DescentConfig,
    LeastSquaresConfig,
    MinibatchConfig,
    OfflineConfig,
    TreeConfig,
)
from celrec.config.online import OnlineConfig
from celrec.data.interactions import Interactions
from celrec.errors import CelrecError
from celrec.offline.gradient_descent import GradientDescent
from celrec.offline.grouped import own_interactions
from celrec.offline.least_squares import AlternatingLeastSquares
from celrec.offline.minibatch import MinibatchDescent
from celrec.offline.online_solver import OnlineDescent
from celrec.offline.solver import Solver
from celrec.offline.tree_admm import TreeAdmm
from celrec.recommender.factorisation import Factorisation
from celrec.recommender.id_model import IdModel
from celrec.recommender.model import Model
from celrec.runtime.communicator import Communicator


def make_solver(
    config: OfflineConfig, model: Model, log: Interactions, communicator: Communicator | None = None
) -> Solver:
    """The solver that a configuration names; every rank passes the whole log."""
    communicator = communicator or Communicator.alone()
    if isinstance(model, Factorisation) and isinstance(config.solver, DescentConfig):
        return GradientDescent(
            model, own_interactions(log, communicator), config.solver, communicator
        )
    if isinstance(model, Factorisation) and isinstance(config.solver, LeastSquaresConfig):
        return AlternatingLeastSquares(
            model, own_interactions(log, communicator), config.solver, communicator
        )
    if isinstance(model, IdModel) and isinstance(config.solver, MinibatchConfig):
        _check_equal(model, communicator)
        return MinibatchDescent(model, log, config.solver, config.seed, communicator)
    if communicator.size > 1:
        raise CelrecError(
            f"{communicator.size} processes cannot train with {type(config.solver).__name__}; "
            "train in one, or take a network, or model 'nmf' or 'mf' with embedding 'cel'"
        )
    if isinstance(model, IdModel) and isinstance(config.solver, OnlineConfig):
        return OnlineDescent(model, log, replace(config.solver, seed=config.seed))
    if isinstance(model, Factorisation) and isinstance(config.solver, TreeConfig):
        return TreeAdmm(model, log, config.solver, config.seed)
    raise CelrecError(
        f"solver {type(config.solver).__name__} cannot train a {type(model).__name__}; "
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
