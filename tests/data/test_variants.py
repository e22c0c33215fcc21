import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError, load_dataset, read
from celrec.data.split import dense, sparse
from tests.data.logs import logs


@given(logs(), st.integers(0, 6))
def test_dense_keeps_the_pairs_of_warm_users_and_items(log, more_than):
    users, items = log.user_counts, log.item_counts
    rows = zip(log.user, log.item, strict=True)
    warm = [n for n, (u, i) in enumerate(rows) if users[u] > more_than and items[i] > more_than]
    if not warm:
        with pytest.raises(CelrecError, match=f"more_than={more_than}"):
            dense(log, more_than)
        return
    kept = dense(log, more_than)
    assert kept.to_frame().equals(log.to_frame()[warm])
    assert (kept.user_counts > 0).all()
    assert (kept.item_counts > 0).all()


@given(logs(), st.floats(0, 1), st.integers(0, 99))
def test_sparse_drops_its_share_of_every_user_and_keeps_one(log, drop, seed):
    kept = sparse(log, drop, seed)
    before = dict(log.to_frame()["user"].value_counts().rows())
    after = dict(kept.to_frame()["user"].value_counts().rows())
    assert after == {u: max(1, n - int(np.floor(drop * n))) for u, n in before.items()}
    assert kept.to_frame().equals(sparse(log, drop, seed).to_frame())


@given(logs(), st.integers(0, 99))
def test_sparse_keeps_rows_of_the_log_in_its_order(log, seed):
    rows = log.to_frame().rows()
    remaining = iter(rows)
    assert all(row in remaining for row in sparse(log, 0.5, seed).to_frame().rows())


def test_a_share_beyond_one_is_refused():
    with pytest.raises(CelrecError, match="drop must be a share"):
        sparse(load_dataset("synthetic"), 1.5)


@pytest.mark.usefixtures("data_folder")
def test_the_papers_variants_of_ml_1m():
    log = load_dataset("ml-1m")
    half = sparse(log)
    assert len(half) == int(np.sum(log.user_counts - log.user_counts // 2))
    assert half.num_users == 6040
    warm = dense(log)
    assert (len(warm), warm.num_users, warm.num_items) == (790_782, 2_909, 2_006)
    assert warm.item_features.height == warm.num_items


@pytest.mark.parametrize("variant", [lambda log: dense(log, 0), lambda log: sparse(log, 0.0)])
def test_rows_with_an_unseen_id_are_in_no_variant(variant):
    known = read({"user": [1, 2], "item": [1, 2], "rating": [5.0, 1.0]})
    more = read({"user": [1, 9, 2], "item": [1, 1, 9], "rating": [5.0, 1.0, 2.0]}, like=known)
    assert variant(more).to_frame().rows() == [(1, 1, 5.0)]
