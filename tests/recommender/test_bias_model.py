import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celrec import BiasModel, Split, load_dataset, read
from celrec.evaluation.metrics import mean_squared_error
from tests.data.logs import logs


@given(logs(), st.floats(0.5, 20))
def test_the_biases_solve_the_ridge_regression(log, strength):
    model = BiasModel.fit(log, strength)
    # The slow way: one column per user and item, solved as one linear system.
    design = np.zeros((len(log), log.num_users + log.num_items))
    design[np.arange(len(log)), log.user] = 1
    design[np.arange(len(log)), log.num_users + log.item] = 1
    system = design.T @ design + strength * np.eye(design.shape[1])
    exact = np.linalg.solve(system, design.T @ (log.target.astype(float) - model.mean))
    assert np.allclose(model.predict(log), model.mean + design @ exact, atol=1e-3)


def test_unseen_and_newer_ids_have_no_bias():
    train = read({"user": [1, 2], "item": [1, 2], "rating": [5.0, 1.0]})
    model = BiasModel.fit(train, 1.0)
    test = read({"user": [9], "item": [9], "rating": [1.0]}, like=train)
    assert model.predict(test).tolist() == [3.0]
    train.user_ids.extend([9])
    newer = read({"user": [9], "item": [1], "rating": [1.0]}, like=train)
    assert model.predict(newer)[0] == pytest.approx(3.0 + model.item_bias[0])


def test_equal_ratings_are_predicted_exactly():
    log = read({"user": [1, 2, 2], "item": [1, 1, 2], "rating": [4.0] * 3})
    assert BiasModel.fit(log, 0.0).predict(log).tolist() == [4.0] * 3


def test_the_strength_is_the_best_on_validation_data():
    split = Split.random(load_dataset("synthetic"))
    chosen = BiasModel.tuned(split.train, split.valid)
    for strength in (0.0, 1.0, 10.0, 50.0):
        other = BiasModel.fit(split.train, strength)
        assert mean_squared_error(
            chosen.predict(split.valid), split.valid.target
        ) <= mean_squared_error(other.predict(split.valid), split.valid.target)


@pytest.mark.usefixtures("data_folder")
def test_biases_on_ml_100k():
    split = Split.fold(load_dataset("ml-100k"), 1)
    model = BiasModel.tuned(split.train, split.valid)
    assert mean_squared_error(model.predict(split.test), split.test.target) < 0.89


def test_rows_with_an_unseen_id_teach_nothing():
    train = read({"user": [1, 2], "item": [1, 2], "rating": [5.0, 1.0]})
    more = read({"user": [1, 2, 9], "item": [1, 2, 1], "rating": [5.0, 1.0, 9.0]}, like=train)
    assert (
        BiasModel.fit(more, 1.0).user_bias.tolist() == BiasModel.fit(train, 1.0).user_bias.tolist()
    )
