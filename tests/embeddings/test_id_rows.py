"""Tables under a memory budget behave like tables in memory."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.description import describe_embedding, make_embedding, smallest_description
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.runtime.memory_budget import MemoryBudget

MAKERS = {
    "full": lambda: FullEmbedding(4, 2),
    "posterior": lambda: PosteriorEmbedding(4, 2, rows=3),
    "clustered": lambda: ClusteredEmbedding(4, 2, max_clusters=3),
    "levelled": lambda: LevelledEmbedding(4, 2, max_clusters=3),
    "personal": lambda: PersonalEmbedding(PosteriorEmbedding(4, 2, rows=3)),
}
steps = st.lists(
    st.tuples(st.just("grow"), st.integers(0, 30))
    | st.tuples(st.just("keep"), st.integers(0, 2**12 - 1))
    | st.tuples(st.just("change"), st.integers(0, 30))
    | st.tuples(st.just("copy"), st.just(0))
    | st.tuples(st.just("load"), st.just(0)),
    max_size=10,
)


def apply(table, step, value, budget):
    if step == "grow":
        table.grow(table.num_embeddings + value)
    elif step == "keep":
        table.keep(
            torch.tensor([n for n in range(table.num_embeddings) if value >> n % 12 & 1]).long()
        )
    elif step == "change":
        with torch.no_grad():
            for number in table.state_dict().values():
                if number.ndim and len(number) > value and number.dtype != torch.int32:
                    number[value] = value % 3
        if isinstance(table, PersonalEmbedding) and value < table.num_embeddings:
            table.give(torch.tensor([value]))
    elif step == "copy":
        return copy.deepcopy(table)
    elif step == "load":
        other = make_embedding(
            describe_embedding(table)
            if budget is None
            else smallest_description(describe_embedding(table))
        )
        if budget is not None:
            other.use_budget(budget)
        other.load_state_dict(table.state_dict())
        return other
    return table


@pytest.mark.parametrize("kind", MAKERS)
@given(steps=steps, limit=st.sampled_from([0, 100, 10**6]))
def test_a_table_under_a_budget_equals_one_in_memory(kind, steps, limit):
    plain, budget = MAKERS[kind](), MemoryBudget(limit)
    mapped = copy.deepcopy(plain)
    mapped.use_budget(budget)
    for step, value in steps:
        plain, mapped = apply(plain, step, value, None), apply(mapped, step, value, budget)
        states = plain.state_dict(), mapped.state_dict()
        assert [*states[0]] == [*states[1]]
        for one, other in zip(*(state.values() for state in states), strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
        ids = torch.arange(-1, plain.num_embeddings + 2)
        assert torch.equal(plain(ids), mapped(ids))
        assert budget.memory_bytes <= limit


def test_a_copy_of_a_mapped_table_is_in_memory():
    budget, table = MemoryBudget(0), PosteriorEmbedding(1000, 2, rows=4)
    table.use_budget(budget)
    assert budget.mapped_bytes == table.evidence.nbytes
    twin = copy.deepcopy(table)
    twin.grow(2000)
    twin.evidence[:] = 9
    assert not table.evidence.any()
    assert budget.mapped_bytes == table.evidence.nbytes
    table.grow(3000)
    assert budget.mapped_bytes == table.evidence.nbytes == 3001 * 4
