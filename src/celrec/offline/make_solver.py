"""The solver of an offline configuration."""

from __future__ import annotations

from dataclasses import replace

from celrec.config.offline import (
    DescentConfig,
    LeastSquaresConfig,
    MinibatchConfig,
    OfflineConfig,
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
from celrec.recommender.model import Model
from celrec.runtime.communicator import Communicator


def make_solver(
    config: OfflineConfig, model: Model, log: Interactions, communicator: Communicator | None = None
) -> Solver:
    """The solver that a configuration names; every rank passes the whole log."""
    how, communicator = config.solver, communicator or Communicator.alone()
    if isinstance(how, MinibatchConfig):
        _check_equal(model, communicator)
        return MinibatchDescent(model, log, how, config.seed, communicator)
    if not isinstance(how, OnlineConfig) and not model.factorised:
        raise CelrecError(
            f"solver: {type(how).__name__} is for matrix factorisations with squared error, "
            f"not for {type(model.model).__name__}; take MinibatchConfig or OnlineConfig"
        )
    if isinstance(how, DescentConfig):
        return GradientDescent(model, own_interactions(log, communicator), how, communicator)
    if isinstance(how, LeastSquaresConfig):
        part = own_interactions(log, communicator)
        return AlternatingLeastSquares(model, part, how, communicator)
    if communicator.size > 1:
        raise CelrecError(
            f"{communicator.size} processes cannot train with {type(how).__name__}; "
            "train in one, or take a network, or model 'nmf' or 'mf' with embedding 'cel'"
        )
    if isinstance(how, OnlineConfig):
        return OnlineDescent(model, log, replace(how, seed=config.seed))
    return TreeAdmm(model, log, how, config.seed)


def _check_equal(model: Model, communicator: Communicator) -> None:
    """Complain about tables that several processes would come to have different ones of."""
    for name, table in model.whole_tables.items():
        if communicator.size > 1 and table.observes_lookups:
            raise CelrecError(
                f"{communicator.size} processes cannot train {type(table).__name__} of {name}, "
                "which looks at every sample; train in one, or take another embedding"
            )
