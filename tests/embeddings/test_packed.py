"""Packed tables: the vectors of the table that they are made of, in as many bits as are needed."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.description import describe_embedding, make_embedding, smallest_description
from celrec.embeddings.four_bit import FourBitEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.packed import PackedLevels
from celrec.embeddings.personal import BiasedEmbedding
from celrec.inference import TopK
from celrec.recommender.model import Model

DIM = 4


@st.composite
def tables(draw):
    """Levels with clusters of their own, for all columns or for half of them."""
    ids, levels = draw(st.integers(2, 40)), draw(st.integers(1, 4))
    parts = draw(st.integers(1, 2))
    padding = draw(st.none() | st.integers(0, ids - 1))
    table = LevelledEmbedding(
        ids, DIM, max_clusters=ids, levels=levels, parts=parts, padding_idx=padding
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    for level in table.clustered_levels:
        clusters = draw(st.integers(1, ids))
        labels = torch.randint(clusters, (ids,), generator=generator)
        labels[:clusters] = torch.arange(clusters)
        level.start_from(labels)
        level.unseen_cluster = draw(st.integers(0, clusters - 1))
        with torch.no_grad():
            level.weight.normal_(generator=generator)
    return table


def everyone(table):
    count = table.num_embeddings
    return torch.tensor([*range(count), -1, count, 2**40, -(2**63)])


@given(tables())
def test_codes_and_float_rows_are_those_of_the_table(table):
    packed, ids = PackedLevels.of(table, bits=32), everyone(table)
    assert torch.equal(packed.codes(ids), table.codes(ids))
    assert torch.equal(packed(ids), table(ids))


@given(tables())
def test_rows_of_eight_bits_are_as_near_as_their_steps(table):
    packed, ids = PackedLevels.of(table), everyone(table)
    apart = (packed(ids) - table(ids)).abs()
    assert bool((apart <= packed.step.sum() / 2 + 1e-6).all())
    largest = [
        level.weight[: level.num_clusters].abs().max() / 127 for level in table.clustered_levels
    ]
    torch.testing.assert_close(packed.step.data, torch.stack(largest).detach())


@given(tables(), st.sampled_from([8, 32]))
def test_memory_is_counted_in_bits(table, bits):
    packed = PackedLevels.of(table, bits=bits)
    counts = [level.num_clusters for level in table.clustered_levels]
    width = sum(math.ceil(math.log2(count)) for count in counts)
    numbers = sum(counts) * DIM // table.parts
    rows = numbers * bits // 8 + (4 * len(counts) if bits == 8 else 0)
    codes = math.ceil((table.num_embeddings + 1) * width / 8)
    assert packed.memory().table == rows
    assert packed.memory().index == codes + 8


@given(tables(), st.data())
def test_ids_are_added_and_removed_as_from_the_table(table, data):
    packed = PackedLevels.of(table, bits=32)
    packed.padding_idx = table.padding_idx = None
    before = table(everyone(table))
    kept = [n for n in range(table.num_embeddings) if data.draw(st.booleans())]
    packed.keep(torch.tensor(kept).long())
    assert torch.equal(packed(torch.arange(len(kept))), before[kept])
    assert packed.num_embeddings == max(len(kept), 1)
    more = packed.num_embeddings + data.draw(st.integers(0, 20))
    packed.grow(more)
    assert torch.equal(
        packed(torch.arange(len(kept), more + 3)[:, None])[:, 0], unseen(packed, kept)
    )
    again = make_embedding(smallest_description(describe_embedding(packed)))
    again.load_state_dict(copy.deepcopy(packed.state_dict()))
    assert torch.equal(again(everyone(packed)), packed(everyone(packed)))


def unseen(packed, kept):
    return packed(torch.tensor([-1])).expand(packed.num_embeddings + 3 - len(kept), -1)


def test_levels_may_have_columns_of_their_own():
    """As a bias has, in the last column."""
    codes = torch.tensor([[0, 2], [1, 0], [1, 1]])
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[10.0], [20.0], [30.0]])
    packed = PackedLevels.pack(codes, rows, [(0, 2), (2, 3)], bits=32)
    assert packed(torch.tensor([0, 1, 7])).tolist() == [[1, 2, 30], [3, 4, 10], [3, 4, 20]]
    assert packed.memory().index == 2 + 8  # three bits for each of three


def test_sixteen_rows_take_half_a_byte_and_one_row_takes_nothing():
    assert PackedLevels(999, 2, rows=[16]).memory().index == 500 + 8
    assert PackedLevels(999, 2, rows=[1]).memory().index == 8
    table = PackedLevels(999, 2, rows=[1])
    assert torch.equal(table(torch.tensor([5])), table(torch.tensor([-1])))


@pytest.mark.parametrize(
    "settings",
    [{"rows": []}, {"rows": [0]}, {"rows": [2], "bits": 4}, {"rows": [2], "columns": [(0, 9)]}],
)
def test_what_cannot_be_is_told(settings):
    with pytest.raises(CelrecError, match=r"must be .*, not "):
        PackedLevels(9, DIM, **settings)


def test_only_shared_rows_are_packed():
    with pytest.raises(CelrecError, match="not FullEmbedding"):
        PackedLevels.of(FullEmbedding(9, DIM))


@pytest.mark.parametrize("kind", ["levels", "four bits"])
def test_the_best_items_are_those_of_all_vectors(kind):
    torch.manual_seed(0)
    if kind == "levels":
        items = ClusteredEmbedding(50, DIM, max_clusters=20)
        items.start_from(torch.arange(50) % 20)
        items = PackedLevels.of(items)
    else:
        items = FourBitEmbedding(50, DIM)
    model = Model(FullEmbedding(3, DIM), items)
    best = TopK(model, priority=torch.arange(50).flip(0).numpy()).recommend([0, 1, 2], k=5)
    scores = model.users(torch.arange(3)) @ items(torch.arange(50)).T
    torch.testing.assert_close(torch.tensor(best.scores), scores.topk(5).values.detach())


def slow_four_bits(row):
    """The step of the least error, in plain numbers."""
    tried = []
    for share in (1.0, 0.9, 0.8, 0.7, 0.6):
        step = max(abs(x) for x in row) * share / 7 or 1.0
        whole = [min(max(round(x / step), -7), 7) * step for x in row]
        tried.append((sum((x - y) ** 2 for x, y in zip(row, whole, strict=True)), whole))
    return min(tried)[1]


@pytest.mark.parametrize("dim", [1, 3, 4])
def test_rows_of_four_bits_have_the_step_of_the_least_error(dim):
    torch.manual_seed(1)
    table = BiasedEmbedding(FullEmbedding(20, dim))
    packed = FourBitEmbedding.of(table)
    ids = torch.tensor([*range(20), -1])
    slow = torch.tensor([slow_four_bits(row) for row in table(ids).tolist()])
    torch.testing.assert_close(packed(ids), slow)
    assert packed.memory().total == 21 * (math.ceil((dim + 1) / 2) + 4)


def test_rows_of_four_bits_grow_and_shrink():
    table = FourBitEmbedding(9, 3, padding_idx=4)
    ids = torch.tensor([0, 4, 8, -1])
    before = table(ids)
    table.keep(ids[:3])
    assert table.padding_idx == 1
    table.grow(5)
    assert torch.equal(table(torch.tensor([0, 1, 2, -1])), before)
    assert torch.equal(table(torch.tensor([3, 4])), before[[3, 3]])
