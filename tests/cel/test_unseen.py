import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec.cel.reassignment import choose_unseen, join_unseen
from celrec.embeddings.clustered import ClusteredEmbedding


@st.composite
def tables(draw):
    clusters = draw(st.integers(1, 5))
    more = draw(st.lists(st.integers(0, clusters - 1), max_size=15))
    table = ClusteredEmbedding(clusters + len(more), 2, max_clusters=clusters)
    table.start_from(torch.tensor([*range(clusters), *more]))
    strangers = draw(st.lists(st.booleans(), min_size=len(more), max_size=len(more)))
    first = draw(st.lists(st.booleans(), min_size=clusters, max_size=clusters))
    return table, torch.tensor([*first, *strangers], dtype=torch.bool)


@given(tables())
def test_strangers_go_where_unseen_ids_are_and_leave_no_cluster_empty(drawn):
    table, strangers = drawn
    choose_unseen(table)
    before = table.assignment.clone()
    join_unseen(table, strangers)
    after = table.assignment
    assert torch.equal(after[:-1][~strangers], before[:-1][~strangers])
    assert int(after[-1]) == int(before[-1])
    assert bool((table.sizes() > 0).all())
    known = set(before[:-1][~strangers].tolist())
    for was, now in zip(before[:-1][strangers], after[:-1][strangers], strict=True):
        assert int(now) == (table.unseen_cluster if int(was) in known else int(was))
