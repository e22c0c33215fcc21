import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.embedding import Memory
from celrec.embeddings.posterior import IMPOSSIBLE, PosteriorEmbedding

IDS, DIM, ROWS = 6, 3, 4


def slow_weights(evidence):
    """w_k = 2^(−e_k/16), nothing for the impossible, made to sum to 1."""
    weights = [0.0 if e == IMPOSSIBLE else 2 ** (-e / 16) for e in evidence]
    return [weight / sum(weights) for weight in weights]


def slow_vector(table, evidence):
    weights = slow_weights(evidence)
    rows = table.weight.tolist()
    return [sum(w * row[d] for w, row in zip(weights, rows, strict=True)) for d in range(DIM)]


@st.composite
def tables(draw, rows=ROWS, most=254):
    """Tables with some rows in use, and any evidence of which the least is 0."""
    first = draw(st.integers(1, rows))
    torch.manual_seed(draw(st.integers(0, 99)))
    table = PosteriorEmbedding(IDS, DIM, rows=rows, first_rows=first, dtype=torch.float64)
    for one in range(IDS + 1):
        evidence = draw(st.lists(st.integers(0, most), min_size=first, max_size=first))
        least = min(evidence)
        table.evidence[one, :first] = torch.tensor([e - least for e in evidence])
    return table


@given(tables())
def test_a_vector_is_the_mean_of_the_rows_under_the_weights(table):
    everyone = torch.tensor([*range(IDS), -1, IDS, 2**40, -(2**63)])
    rows = [*table.evidence.tolist(), *[table.evidence[-1].tolist()] * 3]
    close = {"rtol": 1e-9, "atol": 1e-12}
    weights, vectors = table.weights(everyone), table(everyone)
    assert bool((weights[:, table.num_rows :] == 0).all())
    torch.testing.assert_close(weights.tolist(), [slow_weights(e) for e in rows], **close)
    torch.testing.assert_close(vectors.tolist(), [slow_vector(table, e) for e in rows], **close)


@given(tables())
def test_the_nearest_row_is_the_one_with_the_least_evidence_against_it(table):
    nearest = table.nearest(torch.arange(IDS)).tolist()
    for one, row in enumerate(nearest):
        evidence = table.evidence[one].tolist()
        assert evidence[row] == min(evidence) == 0


# A split halves weights, which takes sixteen steps: it is exact where there is room for those.
@given(tables(rows=ROWS + 1, most=200), st.data())
def test_a_split_changes_no_vector(table, data):
    if table.num_rows > ROWS:
        return
    row = data.draw(st.integers(0, table.num_rows - 1))
    step = torch.tensor([0.7, -1.5, 2.0], dtype=torch.float64)
    ids, rows = torch.arange(-1, IDS), table.num_rows
    before, weights, parent = table(ids).detach(), table.weights(ids), table.weight[row].clone()
    new = table.split(row, step)
    assert (new, table.num_rows) == (rows, rows + 1)
    torch.testing.assert_close(table(ids), before)
    halves = weights[:, row] / 2
    torch.testing.assert_close(table.weights(ids)[:, row], halves)
    torch.testing.assert_close(table.weights(ids)[:, new], halves)
    torch.testing.assert_close(table.weight[row], parent + step)
    torch.testing.assert_close(table.weight[new], parent - step)
    assert bool((table.evidence.amin(1) == 0).all())


@given(tables(rows=ROWS + 1), st.data())
def test_a_split_changes_vectors_no_more_than_by_weights_too_small_to_be_kept(table, data):
    if table.num_rows > ROWS:
        return
    row, ids = data.draw(st.integers(0, table.num_rows - 1)), torch.arange(-1, IDS)
    before = table.weights(ids)
    new = table.split(row, torch.zeros(DIM))
    after = table.weights(ids)
    lost = ROWS * 2 ** (-(255 - 16) / 16)
    torch.testing.assert_close(after[:, row] + after[:, new], before[:, row], atol=lost, rtol=0)


def test_splits_go_on_until_all_rows_are_in_use():
    table = PosteriorEmbedding(IDS, DIM, rows=3, first_rows=1)
    with pytest.raises(CelrecError, match="row must be an active one, 0 … 0, not 1"):
        table.split(1, torch.zeros(DIM))
    assert [table.split(0, torch.ones(DIM)), table.split(1, torch.ones(DIM))] == [1, 2]
    with pytest.raises(CelrecError, match="all 3 rows are in use; raise rows"):
        table.split(0, torch.ones(DIM))
    # Two halves, one of them halved once more.
    expected = torch.tensor([0.5, 0.25, 0.25]).expand(IDS, 3)
    torch.testing.assert_close(table.weights(torch.arange(IDS)), expected)


@given(tables(), st.data())
def test_a_merge_puts_one_row_in_the_place_of_two(table, data):
    rows = table.num_rows
    if rows < 2:
        with pytest.raises(CelrecError, match="first and second must be two active rows"):
            table.merge(0, 0)
        return
    first, second = data.draw(st.permutations(range(rows)))[:2]
    ids = torch.arange(-1, IDS)
    weights, values = table.weights(ids), table.weight.detach().clone()
    table.merge(first, second)
    kept, gone = sorted((first, second))
    assert table.num_rows == rows - 1
    together = weights[:, first] + weights[:, second]
    number = [one for one in range(rows) if one != gone]  # what is left, by its number before
    if gone < rows - 1:  # the last takes the place of the one that is gone
        number = [*number[:gone], rows - 1, *number[gone:-1]]
    expected = torch.stack([together if n == kept else weights[:, n] for n in number], 1)
    # Weights are rounded by half a sixteenth of a bit, and none is below the least.
    found = table.weights(ids)
    torch.testing.assert_close(found[:, : rows - 1], expected, rtol=0.05, atol=1e-4)
    assert bool((found[:, rows - 1 :] == 0).all())
    assert bool((table.evidence.amin(1) == 0).all())
    middle = (values[first] + values[second]) / 2
    for place, n in enumerate(number):
        torch.testing.assert_close(table.weight[place], middle if n == kept else values[n])
    if rows < ROWS:  # there is room again
        assert table.split(0, torch.ones(DIM)) == rows - 1


@given(tables(), st.integers(0, 5))
def test_new_ids_begin_as_unseen_ones_and_then_go_their_own_way(table, more):
    ids = torch.arange(-1, IDS + more)
    before = table(ids).detach()
    table.grow(IDS + more)
    assert torch.equal(table(ids), before)
    if more and table.num_rows > 1:
        table.evidence[IDS] = IMPOSSIBLE
        table.evidence[IDS, 0] = 0
        changed = (table(ids) != before).any(1)
        assert changed.nonzero().flatten().tolist() in ([IDS + 1], [])  # after −1
        torch.testing.assert_close(table(torch.tensor(IDS)), table.weight[0])


def test_a_fresh_table_takes_the_state_of_one_that_has_grown_and_split():
    table = PosteriorEmbedding(IDS, DIM, rows=ROWS, first_rows=1, padding_idx=2)
    table.split(0, torch.ones(DIM))
    table.grow(IDS + 5)
    table.evidence[IDS + 3, 1] = 77
    table.split(1, torch.ones(DIM))
    fresh = PosteriorEmbedding(**{**table.settings(), "num_embeddings": IDS})
    assert fresh.num_rows == ROWS
    fresh.load_state_dict(table.state_dict())
    ids = torch.arange(-2, IDS + 9)
    assert (fresh.num_embeddings, fresh.num_rows) == (IDS + 5, 3)
    assert torch.equal(fresh(ids), table(ids))
    assert fresh.memory() == table.memory()
    assert fresh.split(0, torch.ones(DIM)) == 3


def test_memory_is_that_of_the_rows_in_use_and_a_byte_for_each_row_and_id():
    table = PosteriorEmbedding(100, 8, rows=16, first_rows=3)
    assert table.memory() == Memory(3 * 8 * 4, 101 * 3)
    assert table.memory(training=True) == Memory(16 * 8 * 4, 101 * 16 + 8)
    assert repr(table) == "PosteriorEmbedding(100, 8, rows=3 of 16)"


@pytest.mark.parametrize(("dim", "rows", "few"), [(8, 32, False), (64, 32, True), (64, 100, False)])
def test_memory_is_low_where_rows_are_few_and_long(dim, rows, few):
    table = PosteriorEmbedding(5000, dim, rows=rows)
    assert table.traits.low_memory == few
    full = 5000 * dim * 4
    assert (table.memory(training=True).total < 0.3 * full) == few


def test_rows_learn_as_much_as_they_weigh():
    table = PosteriorEmbedding(2, 1, rows=2)
    table.evidence[0] = torch.tensor([0, 32])
    table(torch.tensor([0])).backward(torch.tensor([[10.0]]))
    torch.testing.assert_close(table.weight.grad, torch.tensor([[8.0], [2.0]]))


@pytest.mark.parametrize("first", [0, -1, ROWS + 1])
def test_the_first_rows_have_to_be_some_of_the_rows(first):
    with pytest.raises(CelrecError, match=f"first_rows must lie in 1 … 4 .*, not {first}"):
        PosteriorEmbedding(IDS, DIM, rows=ROWS, first_rows=first)


def test_a_step_of_evidence_is_a_sixteenth_of_a_bit():
    table = PosteriorEmbedding(1, 1, rows=2, dtype=torch.float64)
    ratios = []
    for steps in (1, 16, 254, IMPOSSIBLE):
        table.evidence[0, 1] = steps
        one, other = table.weights(torch.tensor(0)).tolist()
        ratios.append(other / one)
    assert ratios[:3] == pytest.approx([2 ** (-1 / 16), 0.5, 2**-15.875])
    assert ratios[3] == 0
    assert not math.isnan(sum(ratios))
