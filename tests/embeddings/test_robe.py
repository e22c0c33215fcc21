import copy
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.hashing import hash_ids
from celrec.embeddings.robe import RobeEmbedding

UNSEEN = [-1, -(2**40), 2**40, 2**63 - 1, -(2**63)]


def slow_hash(one, which, seed):
    salt = hash_ids(torch.tensor(which), seed + 1)
    return int(hash_ids(hash_ids(torch.tensor(one), seed) ^ salt, seed))


def slow_vector(table, one):
    """Chunk by chunk and number by number, around the end of the array."""
    array = table.weight.tolist()
    vector = []
    chunk = 0
    while len(vector) < table.embedding_dim:
        begin = slow_hash(one, 2 * chunk, table.seed) % len(array)
        negative = table.signs and slow_hash(one, 2 * chunk + 1, table.seed) % 2
        for number in range(min(table.chunk, table.embedding_dim - len(vector))):
            value = array[(begin + number) % len(array)]
            vector.append(-value if negative else value)
        chunk += 1
    return vector


@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("rows", [1, 5])
def test_vectors_are_chunks_of_the_array(rows, chunk, signs):
    table = RobeEmbedding(50, 7, rows=rows, chunk=chunk, signs=signs, seed=4, dtype=torch.float64)
    ids = [*range(50), *UNSEEN]
    assert table(torch.tensor(ids)).tolist() == [slow_vector(table, one) for one in ids]


@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 20), st.integers(0, 2**40))
def test_chunks_are_consecutive_and_wrap_around(rows, dim, chunk, seed):
    table = RobeEmbedding(100, dim, rows=rows, chunk=chunk, seed=seed)
    places = table.places_of(torch.arange(100))
    assert places.shape == (100, dim)
    assert bool(((places >= 0) & (places < rows * dim)).all())
    steps = places.diff(dim=1) % (rows * dim)
    for number in range(1, dim):
        if number % chunk:
            assert bool((steps[:, number - 1] == 1 % (rows * dim)).all())
    assert all(len(row.unique()) == dim for row in places) or chunk < dim


def test_chunks_begin_anywhere_and_independently():
    table = RobeEmbedding(100_000, 4, rows=10, chunk=2)
    begins = table.places_of(torch.arange(100_000))[:, [0, 2]]
    pairs = torch.bincount(begins[:, 0] * 40 + begins[:, 1], minlength=1600)
    chi_square = float((pairs - 62.5).square().sum() / 62.5)
    assert chi_square < 1599 + 4 * (2 * 1599) ** 0.5


def test_signs_are_fair_and_independent_of_places():
    table = RobeEmbedding(50_000, 2, rows=2, chunk=1, signs=True)
    with torch.no_grad():
        table.weight.fill_(1)
    ids = torch.arange(50_000)
    signs, places = table(ids).detach(), table.places_of(ids)
    for place in range(4):
        assert float(signs[places == place].mean()) == pytest.approx(0, abs=0.03)
    assert float(signs.prod(1).mean()) == pytest.approx(0, abs=0.03)


def test_the_map_is_the_same_on_every_machine_and_in_every_release():
    table = RobeEmbedding(1000, 4, rows=100, chunk=2)
    assert table.places_of(torch.tensor([0, 1, -1])).tolist() == [
        [73, 74, 381, 382],
        [13, 14, 241, 242],
        [377, 378, 259, 260],
    ]


def test_another_seed_gives_other_places():
    first, second = (
        RobeEmbedding(1000, 4, rows=25, seed=seed).places_of(torch.arange(1000)) for seed in (0, 1)
    )
    assert float((first == second).double().mean()) < 0.05


@pytest.mark.parametrize("dim", [1, 16, 200])
def test_vectors_have_a_norm_of_about_one(dim):
    torch.manual_seed(0)
    norms = RobeEmbedding(4000, dim, rows=2000)(torch.arange(4000)).detach().square().sum(1)
    assert float(norms.mean()) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("signs", [False, True])
def test_gradients_are_added_up_where_numbers_are_shared(signs):
    table = RobeEmbedding(50, 6, rows=2, chunk=4, signs=signs, padding_idx=3)
    ids = [1, 2, 2, 49, -7]
    pulls = torch.randn(len(ids), 6)
    (table(torch.tensor([3, *ids]))[1:] * pulls).sum().backward()
    signed = copy.deepcopy(table)
    with torch.no_grad():
        signed.weight.fill_(1)
    expected = torch.zeros(12)
    places, factors = table.places_of(torch.tensor(ids)), signed(torch.tensor(ids)).detach()
    for row in range(len(ids)):
        for place, factor, pull in zip(places[row], factors[row], pulls[row], strict=True):
            expected[place] += factor * pull
    torch.testing.assert_close(table.weight.grad, expected)


def test_vectors_with_signs_cannot_be_kept_from_being_negative():
    table = RobeEmbedding(50, 6, rows=2)
    assert table.non_negative_parameters() == [table.weight]
    with pytest.raises(CelrecError, match="signs must be False"):
        RobeEmbedding(50, 6, rows=2, signs=True).non_negative_parameters()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.booleans())
def test_any_integer_has_a_finite_vector(ids, signs):
    vectors = RobeEmbedding(100, 2, rows=20, signs=signs)(torch.tensor(ids).long())
    assert vectors.shape == (len(ids), 2)
    assert vectors.isfinite().all()


def test_a_table_that_has_grown_keeps_its_vectors_and_can_be_made_again():
    table = RobeEmbedding(100, 5, rows=20, chunk=3, signs=True, seed=3, padding_idx=-1)
    ids = torch.tensor([*range(200), *UNSEEN])
    before = table(ids).detach()
    table.grow(5000)
    assert table.num_embeddings == 5000
    assert table(ids).equal(before)
    settings = json.loads(json.dumps(table.settings()))
    for again in (RobeEmbedding(**settings), copy.deepcopy(table)):
        again.load_state_dict(table.state_dict())
        assert again(ids).equal(before)
        assert again.settings() == settings


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_memory_is_the_bytes_held_and_those_of_the_rows_asked_for(dtype):
    table = RobeEmbedding(100, 5, rows=23, signs=True, dtype=dtype)
    assert table.memory(training=True).total == 23 * 5 * dtype.itemsize
    assert table.overrun == 1
    assert not list(table.buffers())
    assert table(torch.arange(3).to(torch.int8)).dtype == dtype


def test_settings_that_make_no_sense_are_reported():
    with pytest.raises(CelrecError, match="chunk must be positive, not 0"):
        RobeEmbedding(10, 2, rows=4, chunk=0)
    with pytest.raises(CelrecError, match="rows must be positive"):
        RobeEmbedding(10, 2, rows=0)
    with pytest.raises(CelrecError, match="rows must be at most 1,073,741,824 of 2 numbers"):
        RobeEmbedding(10, 2, rows=2**30 + 1, device="meta")
