import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from celrec.offline.kernels import stable_order
from celrec.offline.samples import Pairs

KEYS = st.lists(st.integers(0, 6), max_size=40).map(lambda keys: np.array(keys, np.int64))


@given(KEYS)
def test_an_order_is_stable(keys):
    assert stable_order(keys, 7).tolist() == np.argsort(keys, kind="stable").tolist()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=60))
def test_pairs_are_the_distinct_ones(met):
    rows, columns = np.array(met, np.int64).reshape(-1, 2).T
    found = Pairs(rows, columns, 5, 7)
    distinct = sorted(set(met))
    assert list(zip(found.rows.tolist(), found.columns.tolist(), strict=True)) == distinct
    assert found.counts.tolist() == [met.count(pair) for pair in distinct]
    assert found.first.tolist() == [met.index(pair) for pair in distinct]
    assert found.number.tolist() == [distinct.index(pair) for pair in met]
