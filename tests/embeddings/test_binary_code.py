import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.binary_code import BinaryCodeEmbedding

SPLITS = ["succession", "skip"]
UNSEEN = [-1, -(2**40), 2**40, 2**63 - 1, -(2**63)]


def blocks_of(code, widths, split):
    """The bits of a code, written out, in blocks: the slow way."""
    bits = [code >> place & 1 for place in range(sum(widths))]
    if split == "succession":
        blocks = [[bits.pop(0) for _ in range(width)] for width in widths]
    else:
        blocks = [[] for _ in widths]
        while bits:
            for block, width in zip(blocks, widths, strict=True):
                if len(block) < width:
                    block.append(bits.pop(0))
    return [sum(bit << place for place, bit in enumerate(block)) for block in blocks]


def slow_vector(table, one):
    code = int(table.code(torch.tensor(one)))
    vector = torch.zeros(table.embedding_dim)
    first = 0
    for width, row in zip(table.widths, blocks_of(code, table.widths, table.split), strict=True):
        vector += table.weight[first + row].detach()
        first += 2**width
    return vector


def test_blocks_of_a_code_by_hand():
    # Bits from the lowest: 0 1 1 0 1 1 0.
    assert blocks_of(0b0110110, [3, 2, 2], "succession") == [0b110, 0b10, 0b01]
    assert blocks_of(0b0110110, [4, 2, 1], "skip") == [0b0100, 0b11, 0b1]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("widths", [None, [1], [5], [4, 2, 1], [2, 2, 2], [1, 4]])
def test_a_vector_is_the_sum_of_one_row_of_each_block(widths, split):
    table = BinaryCodeEmbedding(30, 3, rows=14, split=split, widths=widths)
    ids = [*range(30), *UNSEEN]
    slow = torch.stack([slow_vector(table, one) for one in ids])
    torch.testing.assert_close(table(torch.tensor(ids)), slow)


@pytest.mark.parametrize("split", SPLITS)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4).filter(lambda widths: sum(widths) <= 12),
    st.integers(-(2**70), 2**70),
)
def test_ids_of_so_many_bits_have_unique_rows_and_use_all_rows(split, widths, seed):
    table = BinaryCodeEmbedding(1, 1, rows=1, split=split, widths=widths, seed=seed)
    ids = torch.arange(2 ** sum(widths))
    assert table.code(ids).sort().values.equal(ids)
    rows = table.rows_of(ids)
    assert len(rows.unique(dim=0)) == len(ids)
    # Each block of w bits has its 2^w rows, and each row as many ids as any other.
    assert torch.bincount(rows.flatten()).tolist() == [
        len(ids) // 2**width for width in widths for _ in range(2**width)
    ]


@given(
    st.integers(1, 62),
    st.integers(0, 2**40),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
)
def test_codes_follow_the_formula_without_overflow(bits, seed, ids):
    # One bit each, for a small table.
    table = BinaryCodeEmbedding(1, 1, rows=1, widths=[1] * bits, seed=seed)
    for one, found in zip(ids, table.code(torch.tensor(ids)).tolist(), strict=True):
        code = (one + table.offset) % 2**bits
        for factor in table.factors:
            code = code * factor % 2**bits
            code ^= code >> (bits + 1) // 2
        assert found == code


def test_long_codes_are_unique_too():
    table = BinaryCodeEmbedding(1, 1, rows=1, widths=[12, 12, 12, 12, 12, 2])
    some = torch.randint(2**62, (100_000,)).unique()
    codes = table.code(some)
    assert codes.min() >= 0
    assert len(codes.unique()) == len(some)
    assert codes.max() > 2**61
    high = torch.bincount(codes >> 58, minlength=16) / len(some)
    assert high.numpy() == pytest.approx(1 / 16, abs=0.005)


def partitions(total, least=1):
    """All ways to write a number as a sum of numbers in ascending order."""
    if total == 0:
        yield []
    for first in range(least, total + 1):
        for rest in partitions(total - first, first):
            yield [first, *rest]


def rows_in(widths):
    return sum(2**width for width in widths)


@given(st.integers(1, 2**17), st.integers(1, 2**18))
def test_the_blocks_follow_the_rule(ids, rows):
    from celrec.embeddings.binary_code import (
        choose_widths,
    )  # a table of that size would be too large

    bits = max(1, int(np.ceil(np.log2(ids))))
    allowed = [
        widths for widths in partitions(bits) if len(widths) == 2 or widths[-1] - widths[0] <= 1
    ]
    sums = [rows_in(widths) for widths in allowed]
    best = min((total for total in sums if total >= rows), default=max(sums))
    widths = choose_widths(ids, rows)
    assert widths in allowed
    assert rows_in(widths) == best
    assert best >= 2 * bits


@pytest.mark.parametrize(
    ("ids", "rows", "widths"),
    [
        (1682, 84, [5, 6]),
        (1682, 8, [1, 2, 2, 2, 2, 2]),  # the floor: two rows for each of 11 bits
        (3952, 198, [4, 8]),
        (3952, 40, [4, 4, 4]),
        (3952, 20, [2, 2, 2, 2, 2, 2]),
        (59047, 2952, [4, 12]),
        (3952, 4096, [12]),
        (3952, 5000, [12]),  # the ceiling: no more rows than codes
        (3952, 4000, [12]),
        (1, 1, [1]),
    ],
)
def test_blocks_of_known_sizes(ids, rows, widths):
    table = BinaryCodeEmbedding(ids, 1, rows=rows)
    assert table.widths == widths
    assert table.overrun == rows_in(widths) / rows
    assert ("times" in repr(table)) == (table.overrun > 1)


@pytest.mark.parametrize("split", SPLITS)
def test_rows_have_about_as_many_ids_each_as_chance_would_give_them(split):
    for seed in range(5):
        table = BinaryCodeEmbedding(3952, 1, rows=198, split=split, seed=seed)
        sizes = torch.bincount(table.rows_of(torch.arange(3952)).flatten(), minlength=272)
        expected = torch.tensor([3952 / 2**width for width in (4, 8) for _ in range(2**width)])
        freedom = 272 - 2
        assert (
            float(((sizes - expected).square() / expected).sum())
            < freedom + 4 * (2 * freedom) ** 0.5
        )


def test_another_seed_gives_other_rows_and_the_same_seed_the_same():
    first, again, second = (
        BinaryCodeEmbedding(5000, 1, rows=64, seed=seed).rows_of(torch.arange(5000))
        for seed in (0, 0, 1)
    )
    assert first.equal(again)
    assert float((first == second).double().mean()) < 0.15  # by chance, tables have 8 to 32 rows


def test_the_map_is_the_same_on_every_machine_and_in_every_release():
    table = BinaryCodeEmbedding(1000, 1, rows=1, widths=[4, 3, 3])
    assert table.code(torch.tensor([0, 1, 2, 999, -1, 2**40])).tolist() == [
        114,
        972,
        570,
        297,
        355,
        114,
    ]
    assert table.code(torch.tensor([-1])).equal(table.code(torch.tensor([1023])))


@pytest.mark.parametrize("dim", [1, 16, 200])
def test_vectors_have_a_norm_of_about_one(dim):
    torch.manual_seed(0)
    means = []
    for _ in range(20):
        table = BinaryCodeEmbedding(4000, dim, rows=40)
        assert len(table.widths) == 3
        means.append(float(table(torch.arange(4000)).detach().square().sum(1).mean()))
    assert np.mean(means) == pytest.approx(1, abs=0.15)


def test_gradients_reach_the_rows_used():
    table = BinaryCodeEmbedding(30, 2, rows=14, padding_idx=3)
    table(torch.tensor([5, 5, 3])).sum().backward()
    expected = torch.zeros_like(table.weight)
    expected[table.rows_of(torch.tensor(5))] = 2
    assert table.weight.grad.equal(expected)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_any_integer_has_a_finite_vector(ids):
    for split in SPLITS:
        vectors = BinaryCodeEmbedding(100, 2, rows=20, split=split)(torch.tensor(ids).long())
        assert vectors.shape == (len(ids), 2)
        assert vectors.isfinite().all()


def test_a_table_that_has_grown_keeps_its_vectors_and_can_be_made_again():
    table = BinaryCodeEmbedding(100, 2, rows=20, seed=3, split="skip", padding_idx=-1)
    ids = torch.tensor([*range(200), *UNSEEN])
    before = table(ids).detach()
    table.grow(5000)
    assert table.num_embeddings == 5000
    assert table(ids).equal(before)
    settings = json.loads(json.dumps(table.settings()))
    for again in (BinaryCodeEmbedding(**settings), copy.deepcopy(table)):
        again.load_state_dict(table.state_dict())
        assert again(ids).equal(before)
        assert again.settings() == settings
    with pytest.raises(CelrecError, match="only grow"):
        table.grow(10)


@pytest.mark.parametrize("widths", [[], [3, 0], [40, 30]])
def test_widths_that_make_no_sense_are_reported(widths):
    with pytest.raises(CelrecError, match="widths must be positive and sum to at most 62 bits"):
        BinaryCodeEmbedding(10, 2, rows=4, widths=widths)


def test_other_settings_that_make_no_sense_are_reported():
    with pytest.raises(CelrecError, match="split must be succession or skip, not 'random'"):
        BinaryCodeEmbedding(10, 2, rows=4, split="random")
    with pytest.raises(CelrecError, match="rows must be positive"):
        BinaryCodeEmbedding(10, 2, rows=0)


def numbered(**options):
    return BinaryCodeEmbedding(12, 2, rows=8, numbered=True, **options)


@pytest.mark.parametrize("split", SPLITS)
def test_numbers_are_the_codes_of_their_ids(split):
    table = numbered(split=split)
    assert table.widths == [2, 2]
    ids = torch.tensor([*range(12), *UNSEEN])
    wrapped = [one % 16 for one in UNSEEN]
    assert table.code(ids).tolist() == [*range(12), *wrapped]
    numbers = torch.tensor([3, 1, 4, 15, 9, 2, 6, 5, 0, 8, 7, 11])
    table.set_numbers(numbers)
    assert table.code(ids).tolist() == [*numbers.tolist(), *wrapped]
    slow = torch.stack([slow_vector(table, one) for one in ids.tolist()])
    torch.testing.assert_close(table(ids), slow)


def test_neighbours_in_number_share_the_row_of_their_high_bits():
    rows = numbered().rows_of(torch.arange(8))
    assert rows[:4, 1].unique().numel() == 1
    assert rows[4:, 1].unique().numel() == 1
    assert rows[0, 1] != rows[4, 1]
    assert rows[:4, 0].tolist() == [0, 1, 2, 3]


def test_numbers_need_not_be_different():
    table = numbered()
    table.set_numbers(torch.tensor([7] * 12))
    assert table(torch.arange(12)).unique(dim=0).shape[0] == 1


@pytest.mark.parametrize(
    ("bits", "dtype"), [(8, torch.uint8), (9, torch.int16), (15, torch.int16), (16, torch.int32)]
)
def test_numbers_take_the_narrowest_integers_and_are_counted(bits, dtype):
    table = BinaryCodeEmbedding(10, 2, rows=4, widths=[1] * bits, numbered=True)
    assert table.number.dtype == dtype
    assert table.memory().index == table.memory(training=True).index == 10 * dtype.itemsize
    highest = torch.full((10,), 2**bits - 1)
    table.set_numbers(highest)
    assert table.code(torch.arange(10)).equal(highest)


def test_numbers_are_saved_and_grow():
    table, again = numbered(), numbered()
    table.set_numbers(torch.arange(12).flip(0))
    ids = torch.tensor([*range(40), *UNSEEN])
    before = table(ids).detach()
    table.grow(30)
    assert table(ids).equal(before)
    assert table.code(torch.arange(30)).tolist() == [
        *reversed(range(12)),
        *range(12, 16),
        *range(14),
    ]
    again.load_state_dict(table.state_dict())
    assert again.num_embeddings == 30
    assert again(ids).equal(before)
    made = BinaryCodeEmbedding(**json.loads(json.dumps(table.settings())))
    made.load_state_dict(table.state_dict())
    assert made(ids).equal(before)


@pytest.mark.parametrize("number", [-1, 16, 2**40])
def test_numbers_that_are_no_codes_are_reported(number):
    table = numbered()
    before = table.number.clone()
    with pytest.raises(CelrecError, match=f"numbers must lie in 0 … 15, not {number}"):
        table.set_numbers(torch.tensor([0] * 11 + [number]))
    assert table.number.equal(before)


def test_numbers_in_other_numbers_are_reported():
    with pytest.raises(CelrecError, match="one for each of 12 ids, not of shape"):
        numbered().set_numbers(torch.arange(11))
    with pytest.raises(CelrecError, match="numbered is False"):
        BinaryCodeEmbedding(12, 2, rows=8).set_numbers(torch.arange(12))
