import copy
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.compositional import CompositionalEmbedding

COMBINE = ["multiply", "add", "concatenate"]
UNSEEN = [-1, -(2**40), 2**40, 2**63 - 1, -(2**63)]


def slow_vector(table, one):
    """One row of each table, combined number by number."""
    digits = [int(digit) for digit in table.digits(torch.tensor(one))]
    rows = [t[digit].tolist() for t, digit in zip(table.tables, digits, strict=True)]
    if table.combine == "concatenate":
        return [number for row in rows for number in row]
    fold = math.prod if table.combine == "multiply" else sum
    return [fold(numbers) for numbers in zip(*rows, strict=True)]


@pytest.mark.parametrize("combine", COMBINE)
@pytest.mark.parametrize("rows", [40, 13, 3])
def test_a_vector_is_one_row_of_each_table_combined(combine, rows):
    table = CompositionalEmbedding(100, 7, rows=rows, combine=combine, dtype=torch.float64)
    ids = [*range(100), *UNSEEN]
    slow = torch.tensor([slow_vector(table, one) for one in ids], dtype=torch.float64)
    torch.testing.assert_close(table(torch.tensor(ids)), slow)


def test_combinations_by_hand():
    for combine, expected in [("multiply", [3.0, 8.0]), ("add", [4.0, 6.0])]:
        table = CompositionalEmbedding(3, 2, rows=4, combine=combine)
        with torch.no_grad():
            table.tables[0].copy_(torch.tensor([1.0, 2.0]))
            table.tables[1].copy_(torch.tensor([3.0, 4.0]))
        assert table(torch.tensor(1)).tolist() == expected
    table = CompositionalEmbedding(8, 3, rows=3, combine="concatenate")
    assert [tuple(part.shape) for part in table.tables] == [(3, 2), (3, 1)]


@pytest.mark.parametrize("combine", COMBINE)
@given(st.integers(1, 3000), st.integers(1, 100), st.integers(2, 12), st.integers(0, 1000))
def test_no_two_ids_have_the_same_rows_and_the_budget_is_kept(combine, ids, rows, dim, seed):
    table = CompositionalEmbedding(ids, dim, rows=rows, combine=combine, seed=seed)
    digits = torch.stack(table.digits(torch.arange(ids)), -1)
    assert len(digits.unique(dim=0)) == ids
    numbers = sum(parameter.numel() for parameter in table.parameters())
    assert math.prod(table.radices) > ids
    assert table.overrun == pytest.approx(numbers / (rows * dim))
    # All of the budget is used, and more only where all smaller ones are too small.
    assert numbers >= rows * dim
    if numbers > rows * dim:
        larger = numbers // dim - 1
        if combine == "concatenate":
            assert larger**dim <= ids
        else:
            assert all(
                (larger // k + 1) ** (larger % k) * (larger // k) ** (k - larger % k) <= ids
                for k in range(2, larger + 1)
            )


@pytest.mark.parametrize(
    ("rows", "combine", "radices"),
    [
        (198, "multiply", [99, 99]),
        (126, "add", [63, 63]),  # 63 · 63 = 3969, just enough
        (125, "multiply", [42, 42, 41]),
        (40, "multiply", [10, 10, 10, 10]),
        (23, "add", [3, 3, 3, 3, 3, 3, 3, 2]),  # no 22 rows are enough
        (3, "multiply", [3, 3, 3, 3, 3, 3, 3, 2]),
        (40, "concatenate", [40, 40, 40]),
        (198, "concatenate", [198, 198]),
        (1, "concatenate", [2] * 12),
    ],
)
def test_tables_of_known_sizes(rows, combine, radices):
    table = CompositionalEmbedding(3952, 64, rows=rows, combine=combine)
    assert table.radices == radices
    assert ("times" in repr(table)) == (table.overrun > 1)


@pytest.mark.parametrize("combine", COMBINE)
@pytest.mark.parametrize("dim", [2, 16, 200])
@pytest.mark.parametrize("rows", [2000, 150])
def test_vectors_have_a_norm_of_about_one(combine, dim, rows):
    torch.manual_seed(0)
    tables = [CompositionalEmbedding(100_000, dim, rows=rows, combine=combine) for _ in range(10)]
    norms = torch.stack([table(torch.arange(5000)).detach().square().sum(1) for table in tables])
    assert float(norms.mean()) == pytest.approx(1, abs=0.15)


def test_products_start_far_from_zero_if_all_factors_are_made_positive():
    torch.manual_seed(0)
    table = CompositionalEmbedding(3952, 16, rows=50)
    with torch.no_grad():
        for part in table.tables:
            part.clamp_(min=0)
    vectors = table(torch.arange(1000))
    assert float((vectors > 0).double().mean()) > 0.4
    vectors.sum().backward()
    assert all(bool((part.grad > 0).any()) for part in table.tables)
    # Numbers that are 0 can still rise.
    first = table.tables[0]
    assert bool((first.grad[first == 0] > 0).all())


def test_the_seeds_decide_rows_and_numbers():
    ids = torch.arange(1000)
    first, again, second = (
        CompositionalEmbedding(1000, 2, rows=80, seed=seed).digits(ids)[0] for seed in (0, 0, 1)
    )
    assert first.equal(again)
    assert float((first == second).double().mean()) < 0.2
    torch.manual_seed(1)
    one = CompositionalEmbedding(1000, 2, rows=80)(ids)
    torch.manual_seed(1)
    assert CompositionalEmbedding(1000, 2, rows=80)(ids).equal(one)


def test_unseen_ids_are_wrapped_around():
    table = CompositionalEmbedding(3952, 4, rows=198)
    assert table(torch.tensor(-1)).equal(table(torch.tensor(99 * 99 - 2)))
    assert table(torch.tensor(99 * 99 - 1)).equal(table(torch.tensor(0)))


@pytest.mark.parametrize("combine", COMBINE)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_any_integer_has_a_finite_vector(combine, ids):
    table = CompositionalEmbedding(100, 4, rows=20, combine=combine)
    vectors = table(torch.tensor(ids).long())
    assert vectors.shape == (len(ids), 4)
    assert vectors.isfinite().all()


def test_gradients_reach_all_tables_and_skip_padding():
    table = CompositionalEmbedding(100, 2, rows=21, padding_idx=3)
    table(torch.tensor([[5, 3]])).sum().backward()
    one, two = (int(digit) for digit in table.digits(torch.tensor(5)))
    for part, digit, other in zip(
        table.tables, (one, two), (table.tables[1][two], table.tables[0][one]), strict=True
    ):
        expected = torch.zeros_like(part)
        expected[digit] = other
        assert part.grad.equal(expected)


@pytest.mark.parametrize("combine", COMBINE)
def test_a_table_can_be_made_again(combine):
    table = CompositionalEmbedding(100, 5, rows=13, combine=combine, seed=3, padding_idx=-1)
    ids = torch.tensor([*range(100), *UNSEEN])
    settings = json.loads(json.dumps(table.settings()))
    for again in (CompositionalEmbedding(**settings), copy.deepcopy(table)):
        again.load_state_dict(table.state_dict())
        assert again(ids).equal(table(ids))
        assert again.settings() == settings


def test_a_table_cannot_grow():
    table = CompositionalEmbedding(100, 5, rows=13)
    assert not table.traits.incremental
    with pytest.raises(CelrecError, match="cannot grow from 100 to"):
        table.grow(101)


def test_settings_that_make_no_sense_are_reported():
    with pytest.raises(CelrecError, match="combine must be one of multiply, add, concatenate"):
        CompositionalEmbedding(10, 2, rows=4, combine="divide")
    with pytest.raises(CelrecError, match="embedding_dim must be 2 or more"):
        CompositionalEmbedding(10, 1, rows=4, combine="concatenate")
    with pytest.raises(CelrecError, match="rows must be positive"):
        CompositionalEmbedding(10, 2, rows=0)
