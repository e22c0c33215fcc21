import copy
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.description import describe_embedding, make_embedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.id_rows import narrowest_dtype
from celrec.embeddings.mixed import MixedEmbedding


def clustered(assignment, unseen=0, dim=2, **options):
    """A table whose clusters are given."""
    spare = min(len(assignment), max(assignment) + 2)  # a row that is not in use, if there may be
    table = ClusteredEmbedding(len(assignment), dim, max_clusters=spare, **options)
    table.start_from(torch.tensor(assignment))
    table.unseen_cluster = unseen
    return table


def trained(**options):
    """Ids 1, 4 and 7 of eight have rows of their own; nobody else had cluster 2."""
    table = clustered([0, 0, 1, 1, 2, 3, 3, 3], unseen=1, **options)
    warm = torch.tensor([False, True, False, False, True, False, False, True])
    return MixedEmbedding.personalise(table, warm)


def all_ids(table):
    return torch.arange(table.num_embeddings)


@st.composite
def tables(draw):
    """Tables of every method that shares rows."""
    ids = draw(st.integers(1, 10))
    if draw(st.booleans()):
        clusters = draw(st.integers(1, ids))
        rest = st.lists(st.integers(0, clusters - 1), min_size=ids - clusters, max_size=ids)
        assignment = draw(st.permutations([*range(clusters), *draw(rest)][:ids]))
        return clustered(assignment, draw(st.integers(0, clusters - 1)))
    if draw(st.booleans()):
        return FullEmbedding(ids, 2)
    return ModuloEmbedding(ids, 2, rows=draw(st.integers(1, 12)), seed=draw(st.integers(0, 99)))


@st.composite
def tables_and_masks(draw):
    table = draw(tables())
    ids = table.num_embeddings
    return table, draw(st.lists(st.booleans(), min_size=ids, max_size=ids))


@given(tables_and_masks())
def test_personalising_changes_no_vector(case):
    table, warm = case
    mixed = MixedEmbedding.personalise(table, torch.tensor(warm))
    ids = all_ids(table)
    assert torch.equal(mixed(ids), table(ids))
    unseen = torch.tensor([-1, -2, len(ids), len(ids) + 1, 2**60, -(2**60)])
    # Modulo tables hash unseen ids one by one, and a mixed one has a single place for them.
    expected = torch.full_like(unseen, -1) if isinstance(table, ModuloEmbedding) else unseen
    assert torch.equal(mixed(unseen), table(expected))


@given(tables_and_masks())
def test_warm_ids_share_with_nobody_and_the_others_as_before(case):
    table, warm = case
    mixed = MixedEmbedding.personalise(table, torch.tensor(warm))
    everyone = [*range(len(warm)), -1]
    cold = [*(not w for w in warm), True]  # unseen ids never leave
    before, after = (t.row_of(torch.tensor(everyone)).tolist() for t in (table, mixed))
    for i, row in enumerate(after):
        for j, other in enumerate(after):
            shared = i == j or (cold[i] and cold[j] and before[i] == before[j])
            assert (row == other) == shared
    assert mixed.private(torch.tensor([*everyone, len(warm), 2**40])).tolist() == [
        *warm,
        False,
        False,
        False,
    ]


@given(tables_and_masks())
def test_it_holds_the_rows_that_somebody_needs_and_no_others(case):
    table, warm = case
    mixed = MixedEmbedding.personalise(table, torch.tensor(warm))
    cold = [i for i, own in enumerate(warm) if not own]
    needed = set(table.row_of(torch.tensor([*cold, -1])).tolist())
    assert (mixed.shared_rows, mixed.private_rows) == (len(needed), sum(warm))
    assert mixed.num_rows == len(mixed.weight) == len(needed) + sum(warm)
    used = set(mixed.row_of(torch.tensor([*range(len(warm)), -1])).tolist())
    assert used == set(range(mixed.num_rows))


def test_rows_are_shared_first_and_private_in_the_order_of_ids():
    table = trained()
    # Cluster 2 had one member, which left: clusters 0, 1 and 3 stay, in this order.
    assert table.row.tolist() == [0, 3, 1, 1, 4, 2, 2, 5, 1]
    assert (table.shared_rows, table.private_rows, table.num_rows) == (3, 3, 6)


def test_the_row_of_unseen_ids_stays_though_all_its_ids_have_left():
    shared = clustered([0, 0, 1], unseen=1)
    table = MixedEmbedding.personalise(shared, torch.tensor([False, False, True]))
    assert (table.shared_rows, table.private_rows) == (2, 1)
    assert table.row.tolist() == [0, 0, 2, 1]
    assert torch.equal(table(torch.tensor([2, -1, 3])), shared.weight[[1, 1, 1]])


def test_nobody_is_warm():
    shared = clustered([0, 1, 1, 2])
    table = MixedEmbedding.personalise(shared, torch.zeros(4, dtype=torch.bool))
    assert (table.shared_rows, table.private_rows) == (3, 0)
    assert torch.equal(table.weight, shared.weight[:3])
    assert torch.equal(table.row_of(all_ids(table)), shared.row_of(all_ids(table)))
    assert not table.private(all_ids(table)).any()


def test_everybody_is_warm():
    shared = clustered([0, 1, 1, 2], unseen=2)
    table = MixedEmbedding.personalise(shared, torch.ones(4, dtype=torch.bool))
    assert (table.shared_rows, table.private_rows) == (1, 4)  # the one is for unseen ids
    assert table.row.tolist() == [1, 2, 3, 4, 0]
    assert torch.equal(table(torch.tensor([9])), shared.weight[[2]])


@pytest.mark.parametrize("warm", [True, False])
def test_there_may_be_one_id(warm):
    shared = clustered([0])
    table = MixedEmbedding.personalise(shared, torch.tensor([warm]))
    assert table.num_rows == 1 + warm
    assert torch.equal(table(torch.tensor([0, 1])), shared.weight[[0, 0]])


def test_a_mixed_table_can_be_personalised_further():
    table = trained()
    warm = torch.tensor([True, True, False, False, True, False, True, False])
    further = MixedEmbedding.personalise(table, warm)
    ids = torch.arange(-1, 9)
    assert torch.equal(further(ids), table(ids))
    assert further.private(all_ids(table)).tolist() == warm.tolist()
    # Rows of the unseen with 2 and 3, of 5, and of 7, which has its row alone but not as its own.
    assert (further.shared_rows, further.private_rows) == (3, 4)


def test_personalising_leaves_the_table_it_comes_from_alone():
    shared = clustered([0, 1, 1])
    before = copy.deepcopy(shared.state_dict())
    table = MixedEmbedding.personalise(shared, torch.tensor([True, False, True]))
    with torch.no_grad():
        table.weight += 1
    assert all(torch.equal(shared.state_dict()[name], before[name]) for name in before)


@pytest.mark.parametrize(
    ("warm", "found"),
    [
        (torch.ones(8), "torch.float32 of shape \\(8,\\)"),
        (torch.ones(8, dtype=torch.uint8), "torch.uint8 of shape \\(8,\\)"),
        (torch.tensor([1, 4, 7]), "torch.int64 of shape \\(3,\\)"),  # ids are no mask
        (torch.ones(7, dtype=torch.bool), "torch.bool of shape \\(7,\\)"),
        (torch.ones(9, dtype=torch.bool), "torch.bool of shape \\(9,\\)"),  # one for the unseen
        (torch.ones(1, 8, dtype=torch.bool), "torch.bool of shape \\(1, 8\\)"),
        (torch.tensor(True), "torch.bool of shape \\(\\)"),
    ],
)
def test_what_is_no_mask_over_all_ids_is_reported(warm, found):
    with pytest.raises(CelrecError, match=f"warm must be a mask over all 8 ids, not {found}"):
        MixedEmbedding.personalise(FullEmbedding(8, 2), warm)


def test_a_mask_of_a_large_table_is_reported_in_readable_numbers():
    with pytest.raises(CelrecError, match="over all 1,000 ids"):
        MixedEmbedding.personalise(FullEmbedding(1000, 1), torch.ones(3))


@pytest.mark.parametrize(
    ("count", "dtype"),
    [
        (1, torch.uint8),
        (256, torch.uint8),
        (257, torch.int16),
        (2**15, torch.int16),
        (2**15 + 1, torch.int32),
        (2**31, torch.int32),
        (2**31 + 1, torch.int64),
    ],
)
def test_integers_are_as_narrow_as_the_largest_number_allows(count, dtype):
    assert narrowest_dtype(count) == dtype
    assert int(torch.tensor(count - 1).to(dtype)) == count - 1


@pytest.mark.parametrize(
    ("rows", "width"), [(255, 1), (256, 1), (257, 2), (32_767, 2), (32_768, 2), (32_769, 4)]
)
def test_rows_are_numbered_by_the_narrowest_integers_that_fit(rows, width):
    ids = rows + 5
    warm = torch.ones(ids, dtype=torch.bool)
    warm[:6] = False
    shared = ClusteredEmbedding(ids, 1, max_clusters=2)
    shared.start_from(warm.long())
    for table in (
        MixedEmbedding.personalise(shared, warm),
        MixedEmbedding(ids, 1, shared_rows=1, private_rows=rows - 1),
    ):
        assert table.num_rows == rows
        assert table.row.dtype == narrowest_dtype(rows)
        assert table.memory().index == (ids + 1) * width
        assert sorted(set(table.row_of(all_ids(table)).tolist())) == list(range(rows))
        assert int(table.private(all_ids(table)).sum()) == rows - 1


def test_it_takes_all_rows_and_a_number_for_every_id():
    for training in (False, True):
        memory = trained(dim=5).memory(training=training)
        # Three shared and three private rows of five floats; eight ids and the unseen ones.
        assert (memory.table, memory.index) == (6 * 5 * 4, 9)
    memory = trained(dim=5, dtype=torch.float64).memory()
    assert (memory.table, memory.index) == (6 * 5 * 8, 9)


def test_the_float_type_and_the_padding_are_those_of_the_table_it_comes_from():
    table = trained(dtype=torch.float64, padding_idx=-1)
    assert table.weight.dtype == torch.float64
    assert table.padding_idx == 7
    assert table(torch.tensor([7])).tolist() == [[0, 0]]
    assert table(torch.tensor([5, 6, -1])).ne(0).all()  # 5 and 6 had the row of 7


@pytest.mark.parametrize(
    ("ids", "shared", "private"),
    [(5, 2, 2), (5, 1, 0), (5, 2, 5), (1, 1, 1), (1, 1, 0), (3, 4, 0), (3, 9, 3)],
)
def test_in_a_new_table_the_first_ids_have_rows_of_their_own(ids, shared, private):
    table = MixedEmbedding(ids, 2, shared_rows=shared, private_rows=private)
    assert table.num_rows == len(table.weight) == shared + private
    assert table.private(all_ids(table)).tolist() == [i < private for i in range(ids)]
    rows = table.row_of(torch.tensor([*range(ids), -1, ids])).tolist()
    assert rows[:private] == list(range(shared, shared + private))
    assert all(0 <= row < shared for row in rows[private:])


@pytest.mark.parametrize("rows", [0, -1])
def test_there_is_at_least_one_shared_row(rows):
    with pytest.raises(CelrecError, match=f"shared_rows must be positive, not {rows}"):
        MixedEmbedding(5, 2, shared_rows=rows, private_rows=2)


@pytest.mark.parametrize("rows", [-1, 6])
def test_there_is_at_most_one_private_row_per_id(rows):
    with pytest.raises(CelrecError, match=f"must lie in 0 … 5 \\(the ids\\), not {rows}"):
        MixedEmbedding(5, 2, shared_rows=1, private_rows=rows)


def test_the_gradient_of_a_private_row_comes_from_its_id_alone():
    table = trained()
    pull = torch.randn(10, 2)
    (table(torch.arange(-1, 9)) * pull).sum().backward()
    of = dict(zip(range(-1, 9), pull, strict=True))
    expected = torch.stack(
        [of[0], of[2] + of[3] + of[-1] + of[8], of[5] + of[6], of[1], of[4], of[7]]
    )
    torch.testing.assert_close(table.weight.grad, expected)


@pytest.mark.parametrize(
    ("trained_id", "moved"),
    [(1, [1]), (7, [7]), (0, [0]), (2, [2, 3, -1, 8]), (-1, [2, 3, -1, 8]), (6, [5, 6])],
)
def test_training_an_id_moves_those_that_share_its_row(trained_id, moved):
    table = trained()
    everyone = torch.arange(-1, 9)
    before = table(everyone).detach()
    optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
    table(torch.tensor([trained_id])).sum().backward()
    optimizer.step()
    step = torch.tensor([[-0.5 if i in moved else 0.0] for i in everyone.tolist()])
    torch.testing.assert_close(table(everyone).detach() - before, step.expand(-1, 2))


@given(tables_and_masks())
def test_a_state_dict_restores_the_table_in_one_made_from_its_description(case):
    table, warm = case
    mixed = MixedEmbedding.personalise(table, torch.tensor(warm))
    fresh = make_embedding(json.loads(json.dumps(describe_embedding(mixed))))
    fresh.load_state_dict(copy.deepcopy(mixed.state_dict()))
    ids = torch.arange(-2, len(warm) + 2)
    assert torch.equal(fresh(ids), mixed(ids))
    assert torch.equal(fresh.row_of(ids), mixed.row_of(ids))
    assert torch.equal(fresh.private(ids), mixed.private(ids))
    assert fresh.memory() == mixed.memory()


def test_safetensors_keep_the_whole_table():
    safetensors = pytest.importorskip("safetensors.torch")
    table = trained()
    fresh = MixedEmbedding(8, 2, shared_rows=3, private_rows=3)
    fresh.load_state_dict(safetensors.load(safetensors.save(table.state_dict())))
    ids = torch.arange(-1, 9)
    assert torch.equal(fresh(ids), table(ids))


def test_it_says_how_many_rows_are_shared_and_private():
    assert repr(trained(padding_idx=2)) == (
        "MixedEmbedding(8, 2, padding_idx=2, shared=3, private=3)"
    )
