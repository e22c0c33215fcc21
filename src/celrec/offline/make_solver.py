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
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.errors import CelrecError
from celrec.offline.gradient_descent import GradientDescent
from celrec.offline.least_squares import AlternatingLeastSquares
from celrec.offline.minibatch import MinibatchDescent
from celrec.offline.online_solver import OnlineDescent
from celrec.offline.posterior_clusters import PosteriorClusters
from celrec.offline.solver import Solver
from celrec.offline.tree_admm import TreeAdmm
from celrec.recommender.model import Model
from celrec.runtime.communicator import LOCAL, Communicator
from celrec.runtime.partition import Partition


def make_solver(
    config: OfflineConfig, model: Model, log: Interactions, communicator: Communicator = LOCAL
) -> Solver:
    """The solver that a configuration names; every rank passes the whole log."""
    how = config.solver
    if isinstance(how, MinibatchConfig):
        _check_single(model, communicator)
        return MinibatchDescent(model, log, how, config.seed, communicator)
    if not isinstance(how, OnlineConfig) and not model.factorised:
        raise CelrecError(
            f"solver: {type(how).__name__} is for matrix factorisations with squared error, "
            f"not for {type(model.model).__name__}; take MinibatchConfig or OnlineConfig"
        )
    if isinstance(how, DescentConfig):
        return GradientDescent(model, interactions_of_rank(log, communicator), how, communicator)
    if isinstance(how, LeastSquaresConfig):
        part = interactions_of_rank(log, communicator)
        clustered = any(isinstance(t, ClusteredEmbedding) for t in model.row_tables.values())
        judged = how.members == "posterior" and clustered
        solver = PosteriorClusters if judged else AlternatingLeastSquares
        return solver(model, part, how, communicator)
    if communicator.size > 1:
        raise CelrecError(
            f"{communicator.size} processes cannot train with {type(how).__name__}; "
            "train in one, or take a network, or model 'nmf' or 'mf' with embedding 'cel'"
        )
    if isinstance(how, OnlineConfig):
        return OnlineDescent(model, log, replace(how, seed=config.seed))
    return TreeAdmm(model, log, how, config.seed)


def interactions_of_rank(log: Interactions, communicator: Communicator) -> Interactions:
    """The interactions of this rank's users, a contiguous range; `log` has those of all ranks."""
    users = Partition.balanced(log.user_counts, communicator).mine
    if users == slice(0, log.num_users):
        return log
    return log[(log.user >= users.start) & (log.user < users.stop)]


def _check_single(model: Model, communicator: Communicator) -> None:
    """Refuse tables that would come to differ between ranks."""
    for name, table in model.whole_tables.items():
        if communicator.size > 1 and table.observes_lookups:
            raise CelrecError(
                f"{communicator.size} processes cannot train {type(table).__name__} of {name}, "
                "which looks at every sample; train in one, or take another embedding"
            )
