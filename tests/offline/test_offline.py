import pytest

from celrec import CelrecError, Planted
from celrec.config.offline import (
    DescentConfig,
    LeastSquaresConfig,
    OfflineConfig,
    Schedule,
    TreeConfig,
)
from celrec.embeddings.full import FullEmbedding
from celrec.models.deepfm import DeepFM
from celrec.offline.gradient_descent import GradientDescent
from celrec.offline.least_squares import AlternatingLeastSquares
from celrec.offline.training import make_solver
from celrec.recommender.model import Model


@pytest.mark.parametrize("name", ["steps", "validate_every", "patience"])
@pytest.mark.parametrize("value", [0, -3])
def test_wrong_schedules_are_told(name, value):
    with pytest.raises(CelrecError, match=f"{name} must be positive, not {value}"):
        Schedule(**{name: value})


@pytest.mark.parametrize(
    ("how", "solver"),
    [(DescentConfig(), GradientDescent), (LeastSquaresConfig(), AlternatingLeastSquares)],
)
def test_the_solver_is_the_one_that_is_asked_for(how, solver):
    log = Planted(rows=50, users=5, items=4, item_clusters=2).interactions()
    model = Model(FullEmbedding(log.num_users, 2), FullEmbedding(log.num_items, 2))
    made = make_solver(OfflineConfig(solver=how), model, log)
    assert type(made) is solver
    assert made.how is how


@pytest.mark.parametrize("how", [DescentConfig(), LeastSquaresConfig(), TreeConfig()])
def test_solvers_of_factorisations_refuse_other_models(how):
    log = Planted(rows=50, users=5, items=4, item_clusters=2).interactions()
    model = Model(FullEmbedding(log.num_users, 2), FullEmbedding(log.num_items, 2), DeepFM(1))
    with pytest.raises(CelrecError, match=r"is for matrix factorisations .* not for DeepFM; take"):
        make_solver(OfflineConfig(solver=how), model, log)
