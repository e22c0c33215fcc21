"""Dropping ids, in all tables that can."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding

IDS, DIM, ROWS = 9, 2, 4


def full():
    return FullEmbedding(IDS, DIM)


def posterior():
    table = PosteriorEmbedding(IDS, DIM, rows=ROWS)
    table.evidence.copy_(torch.randint(0, 99, table.evidence.shape))
    return table


def clustered():
    table = ClusteredEmbedding(IDS, DIM, max_clusters=ROWS)
    table.start_from(torch.arange(IDS) % ROWS)
    table.unseen_cluster = 2
    return table


def personal(shared=posterior):
    table = PersonalEmbedding(shared())
    for some in ([7], [1, 8], [0]):  # rows are given in the order of time
        table.give(torch.tensor(some))
    with torch.no_grad():
        table.offset.normal_()
    return table


def personal_clustered():
    return personal(clustered)


MAKERS = {
    make.__name__: make for make in (full, posterior, clustered, personal, personal_clustered)
}


def vectors_of(table, ids):
    """Rounded: a product of matrices may differ in its last bit with the number of rows."""
    found = table(torch.tensor(ids, dtype=torch.int64)).double()
    return [[round(value, 5) for value in vector] for vector in found.tolist()]


@pytest.mark.parametrize("name", MAKERS)
@given(data=st.data())
def test_those_who_remain_and_those_to_come_have_the_vectors_that_they_had(name, data):
    torch.manual_seed(0)
    table = MAKERS[name]()
    vectors = vectors_of(table, range(IDS))
    [unseen] = vectors_of(table, [-1])
    for _ in range(3):
        kept = [one for one in range(len(vectors)) if data.draw(st.booleans())]
        table.keep(torch.tensor(kept, dtype=torch.int64))
        vectors = [vectors[one] for one in kept]
        assert vectors_of(table, range(len(kept))) == vectors
        assert vectors_of(table, [-1, len(kept), IDS, 2**40]) == [unseen] * 4
        if data.draw(st.booleans()):
            table.grow(table.num_embeddings + 2)
            vectors += [unseen] * (table.num_embeddings - len(kept))
            assert vectors_of(table, range(len(vectors))) == vectors


@pytest.mark.parametrize("name", MAKERS)
def test_memory_is_that_of_those_who_remain(name):
    table = MAKERS[name]()
    before = table.memory(training=True).total
    table.grow(10_000)
    table.keep(torch.arange(IDS))
    assert table.memory(training=True).total == before
    table.keep(torch.arange(1))
    assert table.memory(training=True).total < before


def test_rows_of_their_own_are_given_back_and_given_again():
    table = personal()
    offsets = table.offset.detach().clone()  # of 7, 1, 8 and 0
    assert table.kept_rows(torch.tensor([1, 7])).tolist() == [1, 0]
    table.keep(torch.tensor([1, 2, 7]))
    assert table.own.tolist() == [0, -1, 1]
    assert (table.own_rows, len(table.offset)) == (2, 2)
    assert torch.equal(table.offset.detach(), offsets[[1, 0]])
    table.give(torch.tensor([1]))
    assert table.own.tolist() == [0, 2, 1]
    assert table.offset[2].tolist() == [0, 0]


def test_padding_keeps_its_vector_under_another_number_or_is_gone():
    table = FullEmbedding(5, 2, padding_idx=3)
    table.keep(torch.tensor([1, 3, 4]))
    assert table.padding_idx == 1
    assert table(torch.tensor([1])).tolist() == [[0, 0]]
    table.keep(torch.tensor([0, 2]))
    assert table.padding_idx is None


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("ids", [[0, IDS], [-1, 2], [2, 1], [3, 3]])
def test_ids_to_keep_must_be_there_and_ascend(name, ids):
    with pytest.raises(CelrecError, match="ids to keep must ascend, from 0 to 8 at most"):
        MAKERS[name]().keep(torch.tensor(ids))


def test_tables_whose_rows_depend_on_numbers_refuse():
    with pytest.raises(CelrecError, match="ModuloEmbedding cannot keep only 2 of 9 ids"):
        ModuloEmbedding(IDS, DIM, rows=3).keep(torch.tensor([0, 1]))
