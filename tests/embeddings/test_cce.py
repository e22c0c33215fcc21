import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings import cce as module
from celrec.embeddings.cce import CceEmbedding
from celrec.embeddings.hashing import hash_ids

IDS = 50
UNSEEN = [-1, -IDS, -(2**40), IDS, 2**40, 2**63 - 1, -(2**63)]
EVERYONE = torch.tensor([*range(IDS), *UNSEEN])


def cce(dim=8, rows=9, **options):
    return CceEmbedding(IDS, dim, rows=rows, **options)


def hashed(table, one, draw, column, height):
    """One of the random hashes, by hand."""
    shift = int(hash_ids(torch.tensor(draw * table.chunks + column), table.seed + 1))
    return int(hash_ids(torch.tensor((one % 2**31) + shift), table.seed)) % height


def slow(table, one, draw=1):
    """The vector of an id, column by column; `draw` counts the hashes h₁."""
    first = len(table.clusters) // table.chunks
    second = len(table.rest) // table.chunks
    found = []
    for column in range(table.chunks):
        seen = 0 <= one < table.num_embeddings
        stored = int(table.pointer[one if seen else 0, column])
        cluster = stored if seen else hashed(table, one, 0, column, first)
        bucket = hashed(table, one, draw, column, second)
        row = table.clusters[column * first + cluster] + table.rest[column * second + bucket]
        found += row.tolist()
    return found


@pytest.mark.parametrize("options", [{}, {"chunks": 2, "seed": 5}, {"rows": 1}, {"dim": 7}])
def test_a_vector_is_a_sum_of_two_rows_in_each_column(options):
    table = cce(**options)
    assert table(EVERYONE).tolist() == [slow(table, one) for one in EVERYONE.tolist()]
    heights = len(table.clusters) // table.chunks
    for one in range(IDS):
        assert table.pointer[one].tolist() == [
            hashed(table, one, 0, column, heights) for column in range(table.chunks)
        ]
    table.recluster()
    table.recluster()
    assert table(EVERYONE).tolist() == [slow(table, one, 3) for one in EVERYONE.tolist()]


@pytest.mark.parametrize(("dim", "chunks"), [(8, 4), (6, 3), (10, 2), (7, 1), (3, 3), (1, 1)])
def test_there_are_at_most_four_chunks_by_default(dim, chunks):
    assert cce(dim).chunks == chunks


@pytest.mark.parametrize("rows", [1, 2, 3, 10, 301])
def test_the_budget_is_kept_to_the_row_but_for_a_single_one(rows):
    table = cce(rows=rows)
    assert table.memory().table == max(2, rows) * 8 * 4
    assert table.overrun == max(2, rows) / rows
    assert ("2.00 times the requested size" in repr(table)) == (rows == 1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_reclustering_makes_centroids_nearest_pointers_and_mean_residuals(seed):
    torch.manual_seed(seed)
    table = cce(seed=seed)  # five clusters and four buckets in each column
    with torch.no_grad():
        before = table(torch.arange(IDS)).view(IDS, 4, 2)
    table.recluster()
    for column in range(4):
        old = before[:, column]
        centroids = table.clusters[5 * column :][:5].detach()
        distances = torch.cdist(old, centroids)
        cluster = table.pointer[:, column].long()
        chosen = distances[torch.arange(IDS), cluster]
        torch.testing.assert_close(chosen, distances.min(1).values)
        bucket = torch.tensor([hashed(table, one, 2, column, 4) for one in range(IDS)])
        for number in range(5):  # k-means came to rest
            torch.testing.assert_close(centroids[number], old[cluster == number].mean(0))
        for number in range(4):
            left = (old - centroids[cluster])[bucket == number].mean(0)
            torch.testing.assert_close(table.rest[4 * column + number].detach(), left)


def test_vectors_that_are_in_clusters_already_stay_as_they_are():
    table = CceEmbedding(3000, 8, rows=20)
    with torch.no_grad():
        table.rest.zero_()
    ids = torch.arange(3000)
    before = table(ids).detach()
    table.recluster()
    torch.testing.assert_close(table(ids).detach(), before)


def test_reclustering_by_blocks_is_reclustering_at_once(monkeypatch):
    table = CceEmbedding(2000, 8, rows=20)
    twin, ids = copy.deepcopy(table), torch.arange(2000)
    table.recluster()
    monkeypatch.setattr(module, "BLOCK", 77)
    twin.recluster()
    torch.testing.assert_close(twin(ids), table(ids))


@pytest.mark.parametrize("sample", [10, 10_000])
def test_reclustered_vectors_are_near_what_they_were(sample, monkeypatch):
    monkeypatch.setattr(module, "SAMPLE", sample)
    torch.manual_seed(0)
    table, ids = CceEmbedding(2000, 8, rows=40), torch.arange(2000)
    before = table(ids).detach()
    table.recluster()
    error = (table(ids) - before).square().mean() / before.square().mean()
    assert error < 0.2


def test_buckets_without_ids_are_zero():
    table = CceEmbedding(3, 4, rows=40)
    table.recluster()
    assert table(torch.arange(-5, 60)).isfinite().all()
    buckets = {hashed(table, one, 2, 0, 20) for one in range(3)}
    empty = [bucket for bucket in range(20) if bucket not in buckets]
    assert not table.rest[empty].any()


def positive():
    """A table with nothing below 0.5, so that there is enough to shift."""
    torch.manual_seed(0)
    table = CceEmbedding(500, 8, rows=20)
    with torch.no_grad():
        for parameter in table.parameters():
            parameter.abs_().add_(0.5)
    return table


def test_what_is_not_negative_stays_so_and_nothing_is_shifted_otherwise():
    table, other = positive(), positive()
    table.recluster()
    assert all(bool((parameter >= 0).all()) for parameter in table.parameters())
    with torch.no_grad():
        other.rest[3, 1] = -0.1
    other.recluster()
    assert (other.rest < 0).any()


def test_shifting_rows_from_one_table_to_the_other_changes_no_vector():
    table, shifted = positive(), positive()
    table.recluster(non_negative=False)
    shifted.recluster()
    ids = torch.arange(500)
    assert (table.rest < 0).any()
    assert (shifted.rest >= 0).all()
    torch.testing.assert_close(shifted(ids), table(ids))


@pytest.mark.parametrize("scale", [0, 1])
def test_where_nothing_can_be_shifted_rows_are_clamped(scale):
    table = cce()
    with torch.no_grad():
        for parameter in table.parameters():
            parameter.relu_()
            parameter *= scale
    table.recluster()
    assert all(bool((parameter >= 0).all()) for parameter in table.parameters())
    assert table(EVERYONE).isfinite().all()


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.Adam,
        torch.optim.Adagrad,
        lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9),
    ],
)
def test_the_optimiser_forgets_and_goes_on(make):
    table = cce()
    optimizer = make(table.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        table(EVERYONE).square().sum().backward()
        optimizer.step()
        table.recluster(optimizer)
        assert not any(state.any() for each in optimizer.state.values() for state in each.values())
    assert table(EVERYONE).isfinite().all()


def test_it_is_reclustered_at_every_so_many_calls_until_it_was_often_enough():
    table = cce(every=3, times=2)
    changed = []
    for _ in range(12):
        before = table(EVERYONE).detach()
        table.adapt()
        changed.append(not torch.equal(table(EVERYONE), before))
    assert changed == [False, False, True] * 2 + [False] * 6


def test_counts_of_calls_are_saved():
    table, fresh = cce(every=3, times=1), cce(every=3, times=1)
    table.adapt()
    table.adapt()
    fresh.load_state_dict(copy.deepcopy(table.state_dict()))
    before = fresh(EVERYONE).detach()
    fresh.adapt()
    assert not torch.equal(fresh(EVERYONE), before)


def test_seeds_decide_everything():
    def run(torch_seed, seed):
        torch.manual_seed(torch_seed)
        table = cce(seed=seed)
        table.recluster()
        return table(EVERYONE)

    assert torch.equal(run(0, 1), run(0, 1))
    assert not torch.equal(run(0, 1), run(0, 2))
    assert not torch.equal(run(0, 1), run(1, 1))


@pytest.mark.parametrize("dim", [1, 16, 400])
def test_vectors_have_a_norm_of_about_one(dim):
    vectors = CceEmbedding(2000, dim, rows=2000)(torch.arange(2000)).detach()
    assert float(vectors.square().sum(1).mean()) == pytest.approx(1, abs=0.15)


def test_new_ids_keep_their_vectors():
    table = cce()
    table.recluster()
    before = table(EVERYONE)
    table.grow(IDS + 5)
    assert torch.equal(table(EVERYONE), before)
    fresh = cce()
    fresh.load_state_dict(copy.deepcopy(table.state_dict()))
    assert fresh.num_embeddings == IDS + 5
    assert torch.equal(fresh(EVERYONE), before)
    table.recluster()
    assert table(EVERYONE).isfinite().all()
    with pytest.raises(CelrecError, match="can only grow"):
        table.grow(IDS)


def test_the_settings_and_the_state_restore_the_table():
    table = cce(seed=3, padding_idx=2, chunks=2, every=4, times=5, dtype=torch.float64)
    table.recluster()
    fresh = CceEmbedding(**table.settings(), dtype=torch.float64)
    fresh.load_state_dict(copy.deepcopy(table.state_dict()))
    for one in (table, fresh):
        one.recluster()
    assert torch.equal(fresh(EVERYONE), table(EVERYONE))
    assert fresh.settings() == table.settings()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_float_types_can_be_reclustered(dtype):
    table = cce().to(dtype)
    table.recluster()
    assert table(EVERYONE).dtype == dtype
    assert table(EVERYONE).isfinite().all()


RECLUSTERED = cce()
RECLUSTERED.recluster()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_any_integer_has_a_finite_vector(ids):
    assert RECLUSTERED(torch.tensor(ids, dtype=torch.int64)).isfinite().all()


@pytest.mark.parametrize("options", [{"chunks": 3}, {"chunks": 0}, {"every": 0}, {"times": -1}])
def test_settings_that_make_no_sense_are_reported(options):
    with pytest.raises(CelrecError, match=next(iter(options))):
        cce(**options)
