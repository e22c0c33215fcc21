"""Tables whose vectors are sums of shared rows, one of each level."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.description import describe_embedding, make_embedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.personal import BiasedEmbedding

DIM = 4


@st.composite
def tables(draw):
    """Some levels, each with clusters of its own, and rows that tell all of them apart."""
    ids, levels, parts = draw(st.integers(2, 12)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    padding = draw(st.none() | st.integers(0, ids - 1))
    table = LevelledEmbedding(
        ids, DIM, max_clusters=ids, levels=levels, parts=parts, padding_idx=padding
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    with torch.no_grad():
        for level in table.clustered_levels:
            clusters = draw(st.integers(1, ids))
            labels = torch.randint(clusters, (ids,), generator=generator)
            labels[:clusters] = torch.arange(clusters)
            level.start_from(labels)
            level.unseen_cluster = draw(st.integers(0, clusters - 1))
            level.weight.normal_(generator=generator)
    return table


def everyone(table):
    return torch.tensor([*range(table.num_embeddings), -1, table.num_embeddings, 2**40])


def slow_vector(table, number):
    """One part after the other, one level after the other."""
    if number == table.padding_idx:
        return torch.zeros(DIM)
    parts = []
    for part in range(table.parts):
        total = torch.zeros(DIM // table.parts)
        for level in range(table.levels_per_part):
            one = table.clustered_levels[part * table.levels_per_part + level]
            seen = 0 <= number < table.num_embeddings
            total = total + one.weight[one.assignment[number if seen else -1].long()]
        parts.append(total)
    return torch.cat(parts)


@given(tables())
def test_a_vector_is_the_sum_of_the_rows_of_its_codes(table):
    slow = torch.stack([slow_vector(table, number) for number in everyone(table).tolist()])
    torch.testing.assert_close(table(everyone(table)), slow)
    codes = table.codes(everyone(table))
    assert codes.shape == (len(everyone(table)), table.parts * table.levels_per_part)
    for level, column in zip(table.clustered_levels, codes.T, strict=True):
        assert torch.equal(column, level.row_of(everyone(table)))


@given(tables())
def test_every_level_has_the_columns_of_its_part(table):
    total = torch.zeros(table.num_embeddings, DIM)
    ids = torch.arange(table.num_embeddings)
    for number, level in enumerate(table.clustered_levels):
        total[:, table.part_of(number)] += level(ids)
    table.padding_idx = None
    torch.testing.assert_close(table(ids), total)


@given(tables(), st.data())
def test_a_split_in_any_level_changes_no_vector(table, data):
    level = data.draw(st.sampled_from(table.clustered_levels))
    cluster = data.draw(st.integers(0, level.num_clusters - 1))
    members = level.members(cluster).tolist()
    before, clusters = table(everyone(table)), table.num_clusters
    if len(members) < 2:
        with pytest.raises(CelrecError, match="at least one member must stay"):
            level.split(cluster, torch.tensor(members))
        return
    leaving = data.draw(st.lists(st.sampled_from(members), min_size=1, unique=True))
    leaving = leaving[: len(members) - 1]
    level.split(cluster, torch.tensor(leaving))
    assert torch.equal(table(everyone(table)), before)
    assert table.num_clusters == clusters + 1


@given(tables(), st.integers(0, 9))
def test_ids_that_are_added_have_the_vector_of_unseen_ids(table, more):
    ids, count = torch.arange(table.num_embeddings), table.num_embeddings
    before, unseen = table(ids), table(torch.tensor(-1))
    table.grow(count + more)
    assert table.num_embeddings == count + more
    assert torch.equal(table(ids), before)
    assert torch.equal(table(torch.arange(count, count + more)), unseen.expand(more, DIM))
    assert torch.equal(table(torch.tensor(-1)), unseen)


@given(tables(), st.data())
def test_ids_that_are_kept_keep_their_vectors(table, data):
    numbers = st.lists(st.integers(0, table.num_embeddings - 1), unique=True)
    ids = torch.tensor(sorted(data.draw(numbers)), dtype=torch.int64)
    before, unseen = table(ids), table(torch.tensor(-1))
    clusters = table.num_clusters
    table.keep(ids)
    assert torch.equal(table(torch.arange(len(ids))), before)
    assert torch.equal(table(torch.tensor(-1)), unseen)
    assert table.num_clusters <= clusters
    for level in table.clustered_levels:
        assert level.num_embeddings == table.num_embeddings
        assert bool(level.sizes().all())


@given(tables(), st.integers(0, 5), st.booleans())
def test_a_fresh_table_of_any_size_takes_a_saved_one(table, more, biased):
    table.grow(table.num_embeddings + more)
    whole = BiasedEmbedding(table) if biased else table
    if biased:
        torch.nn.init.normal_(whole.bias)
    again = make_embedding(describe_embedding(whole))
    again.load_state_dict(copy.deepcopy(whole.state_dict()))
    assert torch.equal(again(everyone(table)), whole(everyone(table)))
    assert describe_embedding(again) == describe_embedding(whole)
    assert again.memory() == whole.memory()
    smaller = LevelledEmbedding(
        table.max_clusters,
        DIM,
        max_clusters=table.max_clusters,
        levels=table.levels_per_part,
        parts=table.parts,
        padding_idx=table.padding_idx,
    )
    smaller.load_state_dict(copy.deepcopy(table.state_dict()))
    assert smaller.num_embeddings == table.num_embeddings
    assert torch.equal(smaller(everyone(table)), table(everyone(table)))


def test_rows_and_codes_are_counted():
    table = LevelledEmbedding(1000, 8, max_clusters=256, levels=3)
    ids = torch.arange(1000)
    for level in table.clustered_levels:
        level.start_from(ids % 100)
    assert table.memory().table == 3 * 100 * 8 * 4
    assert table.memory().index == 3 * 1001  # a byte a level and id
    wide = LevelledEmbedding(1000, 8, max_clusters=257, levels=3)
    assert wide.memory().index == 2 * 3 * 1001


def test_levels_after_the_first_begin_with_zeros():
    torch.manual_seed(0)
    table = LevelledEmbedding(9, DIM, max_clusters=3, levels=2, parts=2)
    assert [bool(level.weight.any()) for level in table.clustered_levels] == [
        True,
        False,
        True,
        False,
    ]


def test_rows_that_are_not_negative_give_vectors_that_are_not_negative():
    table = LevelledEmbedding(9, DIM, max_clusters=3)
    assert {id(one) for one in table.non_negative_parameters()} == {
        id(level.weight) for level in table.clustered_levels
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"levels": 0}, "levels must be positive, not 0"),
        ({"parts": 3}, "parts must divide embedding_dim=4, not 3; change one of them"),
        ({"parts": 0}, "parts must divide embedding_dim=4, not 0; change one of them"),
        ({"max_clusters": 10}, r"max_clusters must lie in 1 … 9 \(the ids\), not 10"),
    ],
)
def test_sizes_that_make_no_sense_are_reported(settings, message):
    with pytest.raises(CelrecError, match=message):
        LevelledEmbedding(9, DIM, **{"max_clusters": 3, **settings})
