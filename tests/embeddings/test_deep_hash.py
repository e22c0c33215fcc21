import copy
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.deep_hash import DeepHashEmbedding
from celrec.embeddings.hashing import hash_ids

UNSEEN = [-1, -(2**40), 2**40, 2**63 - 1, -(2**63)]


def slow_code(table, one):
    """The hashes with integers of any size."""
    bits = int(hash_ids(torch.tensor(one), table.seed))
    found = []
    for number in range(table.num_hashes):
        factor = int(hash_ids(torch.tensor(number), table.seed + 1)) | 1
        offset = int(hash_ids(torch.tensor(number), table.seed + 2))
        found.append((factor * bits + offset) % 2**31 / 2**30 - 1)
    return found


def slow_vector(table, one):
    """The network, unit by unit."""
    state = {name: value.tolist() for name, value in table.state_dict().items()}
    names = [f"network.{2 * layer}" for layer in range(table.hidden)] + ["last"]
    values = slow_code(table, one)
    for name in names:
        if name != names[0]:
            values = [max(value, 0) for value in values]
        values = [
            bias + sum(weight * value for weight, value in zip(weights, values, strict=True))
            for weights, bias in zip(state[f"{name}.weight"], state[f"{name}.bias"], strict=True)
        ]
    return values


@pytest.mark.parametrize("hidden", [1, 2, 4])
@pytest.mark.parametrize("hashes", [1, 1024])
def test_a_vector_is_what_the_network_makes_of_the_hashes(hidden, hashes):
    table = DeepHashEmbedding(100, 3, rows=60, hidden=hidden, hashes=hashes, dtype=torch.float64)
    for parameter in table.parameters():
        torch.nn.init.normal_(parameter)  # biases too
    ids = [*range(10), *UNSEEN]
    slow = torch.tensor([slow_vector(table, one) for one in ids], dtype=torch.float64)
    torch.testing.assert_close(table(torch.tensor(ids)), slow, rtol=1e-5, atol=1e-5)


@given(st.integers(1, 300), st.integers(1, 100), st.integers(1, 200), st.integers(1, 4))
def test_the_network_is_as_large_as_the_budget_allows(rows, dim, hashes, hidden):
    table = DeepHashEmbedding(1000, dim, rows=rows, hashes=hashes, hidden=hidden)

    def numbers(width, inputs):
        between = (hidden - 1) * (width + 1) * width
        return (inputs + 1) * width + between + (width + 1) * dim

    width, inputs = table.width, table.num_hashes
    found = sum(parameter.numel() for parameter in table.parameters())
    assert found == numbers(width, inputs)
    assert inputs <= hashes
    assert numbers(width + 1, min(hashes, 2 * width + 2)) > rows * dim
    assert inputs == hashes or numbers(width, inputs + 1) > rows * dim
    if found > rows * dim:
        assert (width, inputs) == (1, min(hashes, 2))
    assert table.overrun == pytest.approx(found / (rows * dim))


def test_a_floor_above_the_budget_is_reported():
    table = DeepHashEmbedding(100, 64, rows=1)
    assert table.overrun == (3 + 2 + 128) / 64
    assert "2.08 times the requested size, hashes=2, width=1" in repr(table)


def test_hashes_are_spread_evenly_and_know_nothing_of_each_other():
    table = DeepHashEmbedding(10_000, 16, rows=2000)
    code = table.code(torch.arange(10_000)).double()
    assert code.shape == (10_000, table.num_hashes)
    assert bool((code.abs() <= 1).all())
    for place in (0, 1, -1):
        sizes = torch.histc(code[:, place], 20, -1, 1)
        assert float((sizes - 500).square().sum() / 500) < 19 + 5 * (2 * 19) ** 0.5
    between = torch.corrcoef(code.T).fill_diagonal_(0)
    assert float(between.abs().max()) < 6 / 10_000**0.5
    of_ids = torch.corrcoef(code[:1000]).fill_diagonal_(0)
    assert float(of_ids.abs().max()) < 6.5 / table.num_hashes**0.5


def test_another_seed_gives_other_hashes():
    ids = torch.arange(1000)
    first, again, second = (
        DeepHashEmbedding(1000, 8, rows=30, seed=seed).code(ids).double() for seed in (0, 0, 1)
    )
    assert first.equal(again)
    both = torch.corrcoef(torch.cat([first, second], 1).T)[: first.shape[1], first.shape[1] :]
    assert float(both.abs().max()) < 6 / 1000**0.5


def test_the_map_is_the_same_on_every_machine_and_in_every_release():
    code = DeepHashEmbedding(1000, 2, rows=1, hashes=2).code(torch.tensor([0, 1, -1]))
    assert (code * 1000).round().tolist() == [[-198.0, -896.0], [243.0, 336.0], [-887.0, 358.0]]


@pytest.mark.parametrize("dim", [1, 16, 100])
@pytest.mark.parametrize("hidden", [1, 3])
def test_vectors_have_a_norm_of_about_one(dim, hidden):
    torch.manual_seed(0)
    tables = [DeepHashEmbedding(1000, dim, rows=10_000 // dim, hidden=hidden) for _ in range(20)]
    norms = torch.stack([table(torch.arange(1000)).detach().square().sum(1) for table in tables])
    assert float(norms.mean()) == pytest.approx(1, abs=0.3)


def test_vectors_of_different_ids_differ():
    torch.manual_seed(0)
    vectors = DeepHashEmbedding(1000, 16, rows=100)(torch.arange(1000)).detach()
    assert len(vectors.unique(dim=0)) == 1000
    assert float(vectors.std(0).square().sum()) > 0.2


def test_the_last_layer_alone_keeps_vectors_from_being_negative():
    torch.manual_seed(0)
    table = DeepHashEmbedding(1000, 16, rows=100)
    assert not bool((table(torch.arange(1000)) >= 0).all())
    with torch.no_grad():
        for parameter in table.non_negative_parameters():
            parameter.abs_()
    assert bool((table(torch.arange(1000)) >= 0).all())
    assert len(table.non_negative_parameters()) == 2


def test_a_vector_does_not_depend_on_others_in_the_batch():
    table = DeepHashEmbedding(100, 4, rows=20, dtype=torch.float64)
    whole = table(torch.arange(100))
    torch.testing.assert_close(torch.stack([table(one) for one in torch.arange(100)]), whole)


def test_gradients_reach_the_whole_network():
    torch.manual_seed(0)
    table = DeepHashEmbedding(100, 4, rows=20, padding_idx=3)
    table(torch.arange(100)).square().sum().backward()
    assert all(bool(parameter.grad.ne(0).any()) for parameter in table.parameters())
    table.zero_grad()
    table(torch.tensor([3, 3])).sum().backward()
    assert not any(bool(parameter.grad.ne(0).any()) for parameter in table.parameters())


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_any_integer_has_a_finite_vector(ids):
    for dtype in (torch.float32, torch.float16):
        vectors = DeepHashEmbedding(100, 2, rows=20, dtype=dtype)(torch.tensor(ids).long())
        assert vectors.shape == (len(ids), 2)
        assert vectors.isfinite().all()


def test_a_table_that_has_grown_keeps_its_vectors_and_can_be_made_again():
    table = DeepHashEmbedding(100, 5, rows=20, hashes=9, hidden=3, seed=3, padding_idx=-1)
    ids = torch.tensor([*range(200), *UNSEEN])
    before = table(ids).detach()
    table.grow(5000)
    assert table.num_embeddings == 5000
    assert table(ids).equal(before)
    settings = json.loads(json.dumps(table.settings()))
    for again in (DeepHashEmbedding(**settings), copy.deepcopy(table)):
        again.load_state_dict(table.state_dict())
        assert again(ids).equal(before)
        assert again.settings() == settings


@pytest.mark.parametrize("name", ["rows", "hashes", "hidden"])
def test_sizes_have_to_be_positive(name):
    with pytest.raises(CelrecError, match=f"{name} must be positive, not 0"):
        DeepHashEmbedding(10, 2, **{"rows": 4, name: 0})
