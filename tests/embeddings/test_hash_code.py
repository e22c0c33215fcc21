import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings import hash_code
from celrec.embeddings.hash_code import HashCodeEmbedding


def slow_rows(bits, weights, rows):
    """The row of every id, by loops over codes."""
    used = {}
    for line, weight in zip(map(tuple, bits), weights, strict=True):
        used[line] = used.get(line, 0) + weight
    # The most used codes first; of equally used ones, the lower as a number.
    order = sorted(used, key=lambda code: (-used[code], code))
    kept = order[:rows]

    def nearest(code):
        apart = [sum(a != b for a, b in zip(code, other, strict=True)) for other in kept]
        return apart.index(min(apart))

    return [nearest(tuple(line)) for line in bits]


@st.composite
def codes(draw):
    ids, width = draw(st.integers(1, 30)), draw(st.integers(1, 5))
    line = st.lists(st.booleans(), min_size=width, max_size=width)
    bits = draw(st.lists(line, min_size=ids, max_size=ids))
    weights = draw(st.lists(st.integers(0, 3), min_size=ids, max_size=ids))
    return bits, weights, draw(st.integers(1, 35))


@given(codes(), st.sampled_from([1, 1 << 22]))
def test_codes_are_merged_as_a_slow_search_has_it(drawn, chunk):
    bits, weights, rows = drawn
    table = HashCodeEmbedding(len(bits), 2, rows=rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hash_code, "BLOCK", chunk)  # one distance at once, or all
        table.set_codes(torch.tensor(bits), torch.tensor(weights))
    assert table.row_of(torch.arange(len(bits))).tolist() == slow_rows(bits, weights, rows)


def test_a_code_that_is_as_near_to_two_goes_to_the_one_that_is_used_more():
    table = HashCodeEmbedding(4, 2, rows=2)
    bits = torch.tensor([[1, 1], [0, 0], [1, 1], [0, 1]]).bool()
    table.set_codes(bits, torch.tensor([1, 5, 1, 1]))
    assert table.row_of(torch.arange(4)).tolist() == [1, 0, 1, 0]
    table.set_codes(bits, torch.tensor([4, 5, 4, 1]))
    assert table.row_of(torch.arange(4)).tolist() == [0, 1, 0, 0]


def test_use_counts_by_weight_and_not_by_ids():
    table = HashCodeEmbedding(4, 2, rows=1)
    table.set_codes(torch.tensor([[1], [0], [0], [0]]).bool(), torch.tensor([1e9, 1, 1, 1]))
    assert table.row_of(torch.arange(4)).tolist() == [0, 0, 0, 0]
    two = HashCodeEmbedding(4, 2, rows=2)
    two.set_codes(torch.tensor([[1], [0], [0], [0]]).bool(), torch.tensor([1e9, 1, 1, 1]))
    assert two.row_of(torch.arange(4)).tolist() == [0, 1, 1, 1]


def test_unseen_ids_share_the_row_of_the_most_used_code():
    table = HashCodeEmbedding(5, 2, rows=3)
    table.set_codes(torch.tensor([[0, 0], [0, 1], [0, 1], [1, 1], [1, 0]]).bool(), torch.ones(5))
    assert table.row_of(torch.tensor([1, -1, 5, 2**40, -(2**63)])).tolist() == [0] * 5
    assert table(torch.tensor(-1)).equal(table.weight[0])


def test_more_rows_than_codes_leave_some_without_ids():
    table = HashCodeEmbedding(6, 2, rows=5)
    table.set_codes(torch.tensor([[0], [1]] * 3).bool(), torch.ones(6))
    assert table.row_of(torch.arange(6)).tolist() == [0, 1] * 3
    assert table.num_rows == 5


def test_until_there_are_codes_ids_take_the_rows_in_turns():
    table = HashCodeEmbedding(7, 2, rows=3)
    assert table.row_of(torch.tensor([*range(7), -1])).tolist() == [0, 1, 2, 0, 1, 2, 0, 0]


def test_new_codes_take_the_place_of_old_ones():
    table, fresh = HashCodeEmbedding(8, 2, rows=3), HashCodeEmbedding(8, 2, rows=3)
    table.set_codes(torch.arange(8)[:, None] > torch.arange(7), torch.ones(8))
    for one in (table, fresh):
        one.set_codes(torch.arange(8)[:, None] % 3 > torch.arange(2), torch.arange(8))
    assert table.row.equal(fresh.row)


@pytest.mark.parametrize(
    "bits",
    [
        torch.zeros(4, 3, dtype=torch.bool),  # an id too few
        torch.zeros(6, 3, dtype=torch.bool),
        torch.zeros(5, dtype=torch.bool),
        torch.zeros(5, 3, 1, dtype=torch.bool),
        torch.zeros(5, 3, dtype=torch.int64),
        torch.zeros(5, 3),
    ],
    ids=lambda bits: f"{bits.dtype}-{tuple(bits.shape)}",
)
def test_bits_that_are_no_lines_of_booleans_are_reported(bits):
    table = HashCodeEmbedding(5, 2, rows=2)
    before = table.row.clone()
    with pytest.raises(CelrecError, match="bits must have a row of booleans for each of 5 ids"):
        table.set_codes(bits, torch.ones(5))
    assert table.row.equal(before)


@pytest.mark.parametrize(
    ("rows", "bytes_"), [(1, 1), (256, 1), (257, 2), (2**15, 2), (2**15 + 1, 4)]
)
def test_row_numbers_are_as_narrow_as_can_be(rows, bytes_):
    table = HashCodeEmbedding(10, 1, rows=rows)
    assert table.memory().index == 11 * bytes_
    assert table.memory().table == rows * 4


def test_it_cannot_take_more_ids():
    with pytest.raises(CelrecError, match="cannot grow from 5 to"):
        HashCodeEmbedding(5, 2, rows=2).grow(6)
