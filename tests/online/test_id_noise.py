"""Random numbers that depend on the id alone."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from celrec.online.plain_tables import id_noise


def drawn(first, last, width=3, seed=5):
    found = np.full((last - first, width), np.nan, np.float32)
    for part, noise in id_noise(first, last, width, seed):
        assert np.isnan(found[part]).all()
        found[part] = noise
    assert np.isfinite(found).all()
    return found


@given(st.lists(st.integers(0, 1500), min_size=2, max_size=5))
def test_it_does_not_matter_who_comes_together(cuts):
    cuts = sorted(cuts)
    parts = [drawn(*ends) for ends in pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(parts), drawn(cuts[0], cuts[-1]))


def test_it_is_normal_and_another_one_for_each_seed():
    values = drawn(0, 4000)
    assert abs(values.mean()) < 0.03
    assert abs(values.std() - 1) < 0.03
    assert abs(np.corrcoef(values[:2000].ravel(), values[2000:].ravel())[0, 1]) < 0.05
    assert (drawn(0, 9, seed=6) != values[:9]).all()
