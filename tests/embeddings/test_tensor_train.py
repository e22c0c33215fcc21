import copy
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.tensor_train import TensorTrainEmbedding

UNSEEN = [-1, -(2**40), 2**40, 2**63 - 1, -(2**63)]


def slow_vector(table, one):
    """The product of three matrices for each of the numbers of a vector."""
    i1, i2, i3 = (int(digit) for digit in table.digits(torch.tensor(one)))
    r1, r2, r3 = table.factors
    first, second, third = (core.detach() for core in table.cores)
    second = second.view(len(second), table.rank, r2, table.rank)
    return [
        float(first[i1, j1] @ second[i2, :, j2] @ third[i3, :, j3])
        for j1 in range(r1)
        for j2 in range(r2)
        for j3 in range(r3)
    ]


@pytest.mark.parametrize("dim", [1, 7, 12, 30])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_numbers_of_vectors_are_products_of_matrices(dim, rows):
    table = TensorTrainEmbedding(100, dim, rows=rows, dtype=torch.float64)
    ids = [*range(0, 100, 7), *UNSEEN]
    slow = torch.tensor([slow_vector(table, one) for one in ids], dtype=torch.float64)
    torch.testing.assert_close(table(torch.tensor(ids)), slow)


def test_all_vectors_are_those_of_the_train_as_one_tensor():
    table = TensorTrainEmbedding(47, 8, rows=20, dtype=torch.float64)
    assert (table.radices, table.factors, table.rank) == ([4, 3, 4], [2, 2, 2], 4)
    first, second, third = table.cores
    whole = torch.einsum("aip,bpjq,cqk->abcijk", first, second.view(3, 4, 2, 4), third)
    ids = torch.arange(47)
    torch.testing.assert_close(table(ids).view(47, 2, 2, 2), whole[tuple(table.digits(ids))])


@given(st.integers(1, 5000), st.integers(1, 200), st.integers(1, 130), st.integers(0, 1000))
def test_sizes_are_the_largest_within_the_budget(ids, rows, dim, seed):
    table = TensorTrainEmbedding(ids, dim, rows=rows, seed=seed)
    assert math.prod(table.factors) == dim
    assert math.prod(table.radices) > ids
    assert len(torch.stack(table.digits(torch.arange(ids)), -1).unique(dim=0)) == ids
    n1, n2, n3 = (n * r for n, r in zip(table.radices, table.factors, strict=True))

    def numbers(rank):
        return n1 * rank + n2 * rank**2 + n3 * rank

    assert sum(core.numel() for core in table.cores) == numbers(table.rank)
    assert numbers(table.rank + 1) > rows * dim
    assert numbers(table.rank) <= rows * dim or table.rank == 1
    assert table.overrun == pytest.approx(numbers(table.rank) / (rows * dim))


@pytest.mark.parametrize(
    ("dim", "factors"),
    [(1, [1, 1, 1]), (7, [1, 1, 7]), (8, [2, 2, 2]), (64, [4, 4, 4]), (60, [4, 3, 5])],
)
def test_the_dimension_has_balanced_factors_the_smallest_in_the_middle(dim, factors):
    assert TensorTrainEmbedding(100, dim, rows=10).factors == factors


def test_a_floor_above_the_budget_is_reported():
    table = TensorTrainEmbedding(1000, 8, rows=3)
    assert table.rank == 1
    assert table.overrun == (10 + 10 + 11) * 2 / (3 * 8)
    assert "2.58 times the requested size, rank=1" in repr(table)


@pytest.mark.parametrize("dim", [1, 16, 100])
@pytest.mark.parametrize("rows", [1, 300])
def test_vectors_have_a_norm_of_about_one(dim, rows):
    torch.manual_seed(0)
    tables = [TensorTrainEmbedding(5000, dim, rows=rows) for _ in range(10)]
    norms = torch.stack([table(torch.arange(5000)).detach().square().sum(1) for table in tables])
    assert float(norms.mean()) == pytest.approx(1, abs=0.25)


def test_cores_that_are_not_negative_give_such_vectors():
    table = TensorTrainEmbedding(100, 6, rows=20)
    with torch.no_grad():
        for parameter in table.non_negative_parameters():
            parameter.abs_()
    assert bool((table(torch.arange(100)) >= 0).all())


def test_gradients_reach_the_slices_used_and_skip_padding():
    table = TensorTrainEmbedding(100, 6, rows=20, padding_idx=3)
    table(torch.tensor([[5, 3]])).sum().backward()
    for core, digit in zip(table.cores, table.digits(torch.tensor(5)), strict=True):
        touched = core.grad.flatten(1).ne(0).any(1)
        assert touched.nonzero().flatten().tolist() == [int(digit)]


def test_gradients_are_those_of_the_formula():
    table = TensorTrainEmbedding(20, 4, rows=6, dtype=torch.float64)
    ids = torch.tensor([1, 7, 7, -2])

    def vectors(*cores):
        names = ["cores.0", "cores.1", "cores.2"]
        return torch.func.functional_call(table, dict(zip(names, cores, strict=True)), (ids,))

    assert torch.autograd.gradcheck(vectors, tuple(table.cores))


def test_the_seeds_decide_digits_and_numbers():
    ids = torch.arange(1000)
    first, again, second = (
        TensorTrainEmbedding(1000, 2, rows=80, seed=seed).digits(ids)[0] for seed in (0, 0, 1)
    )
    assert first.equal(again)
    assert float((first == second).double().mean()) < 0.3
    torch.manual_seed(1)
    one = TensorTrainEmbedding(1000, 2, rows=80)(ids)
    torch.manual_seed(1)
    assert TensorTrainEmbedding(1000, 2, rows=80)(ids).equal(one)


def test_unseen_ids_are_wrapped_around():
    table = TensorTrainEmbedding(47, 4, rows=10)
    assert table(torch.tensor(-1)).equal(table(torch.tensor(4 * 3 * 4 - 2)))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_any_integer_has_a_finite_vector(ids):
    vectors = TensorTrainEmbedding(100, 4, rows=20)(torch.tensor(ids).long())
    assert vectors.shape == (len(ids), 4)
    assert vectors.isfinite().all()


def test_a_table_can_be_made_again():
    table = TensorTrainEmbedding(100, 5, rows=13, seed=3, padding_idx=-1)
    ids = torch.tensor([*range(100), *UNSEEN])
    settings = json.loads(json.dumps(table.settings()))
    for again in (TensorTrainEmbedding(**settings), copy.deepcopy(table)):
        again.load_state_dict(table.state_dict())
        assert again(ids).equal(table(ids))
        assert again.settings() == settings


def test_a_table_cannot_grow():
    table = TensorTrainEmbedding(100, 5, rows=13)
    assert not table.traits.incremental
    with pytest.raises(CelrecError, match="cannot grow from 100 to"):
        table.grow(101)


def test_there_has_to_be_a_row():
    with pytest.raises(CelrecError, match="rows must be positive"):
        TensorTrainEmbedding(10, 2, rows=0)
