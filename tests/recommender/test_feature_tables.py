import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec.data.interactions import EncodedFeature
from celrec.recommender.batch import FeatureTables

GENRES = EncodedFeature("genres", np.array([[0, 2], [1, -1], [-1, -1]], np.int32), 3)
AGE = EncodedFeature("age", np.array([[1], [0], [1]], np.int32), 2)


@given(st.lists(st.integers(-5, 5), max_size=6))
def test_the_vector_of_a_feature_is_the_mean_over_its_values(ids):
    tables = FeatureTables([GENRES, AGE], 4)
    vectors = tables(torch.tensor(ids, dtype=torch.int64))
    assert vectors.shape == (len(ids), 2, 4)
    for vector, j in zip(vectors, ids, strict=True):
        for number, feature in enumerate((GENRES, AGE)):
            known = [v for v in feature.values[j] if v >= 0] if 0 <= j < 3 else []
            mean = torch.zeros(4)
            for value in known:
                mean = mean + tables.tables[number][value] / len(known)
            torch.testing.assert_close(vector[number], mean)


def test_without_features_there_are_no_vectors():
    assert FeatureTables([], 4)(torch.tensor([[1, 2]])).shape == (1, 2, 0, 4)


def test_the_state_holds_the_values_too():
    one, two = FeatureTables([GENRES], 4), FeatureTables([GENRES], 4)
    two.load_state_dict(one.state_dict())
    ids = torch.arange(3)
    assert torch.equal(one(ids), two(ids))


def test_only_values_that_occur_take_a_gradient():
    tables = FeatureTables([GENRES], 4)
    tables(torch.tensor([0])).sum().backward()
    assert tables.tables[0].grad.abs().sum(1).tolist() == [2.0, 0.0, 2.0]
