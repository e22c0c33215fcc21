"""What every embedding method has to do alike."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.biased import BiasedEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.modulo import ModuloEmbedding

IDS, DIM = 12, 3
UNSEEN = [-1, -IDS, -(2**40), IDS, IDS + 1, 2**40, 2**63 - 1, -(2**63)]


def full(**options):
    return FullEmbedding(IDS, DIM, **options)


def modulo(**options):
    return ModuloEmbedding(IDS, DIM, rows=5, seed=1, **options)


def clustered(dim=DIM, **options):
    table = ClusteredEmbedding(IDS, dim, max_clusters=6, **options)
    for cluster, leaving in [(0, [3, 4, 5, 6, 7]), (1, [5, 6]), (0, [0, 11])]:
        new = table.split(cluster, torch.tensor(leaving))
        with torch.no_grad():
            table.weight[new] += new  # as training would, so that rows can be told apart
    table.unseen_cluster = 2
    return table


def mixed(**options):
    warm = torch.zeros(IDS, dtype=torch.bool)
    warm[[0, 3, 5, 8]] = True
    return MixedEmbedding.personalise(clustered(**options), warm)


def biased(**options):
    table = BiasedEmbedding(clustered(DIM - 1, **options))
    with torch.no_grad():
        table.bias.copy_(torch.arange(1, IDS + 2))
    return table


METHODS = [full, modulo, clustered, mixed, biased]


def shared(table):
    """The table that knows the row of an id."""
    return table.rows if isinstance(table, BiasedEmbedding) else table


def vector(table, one):
    """The vector of one id: its row, and its bias where there is one."""
    rows = shared(table)
    row = rows.weight[int(rows.row_of(torch.tensor(one)))].tolist()
    if table is rows:
        return row
    return [*row, table.bias[one if 0 <= one < IDS else IDS].item()]


def gradients(table, ids, pulls):
    """What the parameters get if each vector of `ids` is pulled."""
    rows = shared(table)
    found = {name: torch.zeros_like(value) for name, value in table.named_parameters()}
    of_rows = found["weight" if table is rows else "rows.weight"]
    for one, pull in zip(ids.flatten(), pulls.reshape(-1, DIM), strict=True):
        of_rows[rows.row_of(one)] += pull[: rows.embedding_dim]
        if table is not rows:
            found["bias"][one if 0 <= one < IDS else IDS] += pull[-1]
    return found


def take_gradients(table):
    """The gradients of all parameters, which are forgotten."""
    found = {name: value.grad for name, value in table.named_parameters()}
    table.zero_grad()
    return found


@pytest.fixture(params=METHODS, ids=lambda make: make.__name__)
def make(request):
    return request.param


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (2, 3), (2, 0, 3), (2, 1, 2, 2)])
def test_ids_of_any_shape_and_integer_type_give_one_more_axis(make, shape, dtype):
    table = make()
    ids = torch.randint(IDS, shape)
    vectors = table(ids.to(dtype))
    assert vectors.shape == (*shape, DIM)
    slow = [vector(table, i) for i in ids.flatten().tolist()]
    assert vectors.reshape(-1, DIM).tolist() == slow


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_ids_may_be_narrower_than_the_number_of_ids(dtype):
    for table in (
        FullEmbedding(40_000, DIM),
        ClusteredEmbedding(40_000, DIM, max_clusters=2),
        MixedEmbedding(40_000, DIM, shared_rows=7, private_rows=50),
        BiasedEmbedding(ClusteredEmbedding(40_000, DIM, max_clusters=2)),
    ):
        ids = torch.tensor([0, 7, 100])
        assert torch.equal(table(ids.to(dtype)), table(ids))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_any_integer_has_a_finite_vector_that_is_a_row_in_use(ids):
    for make in METHODS:
        table = make()
        ids_tensor = torch.tensor(ids, dtype=torch.int64)
        rows = shared(table).row_of(ids_tensor)
        assert rows.dtype == torch.int64
        assert bool(((rows >= 0) & (rows < shared(table).num_rows)).all())
        assert table(ids_tensor).isfinite().all()
        assert table(ids_tensor).tolist() == [vector(table, one) for one in ids]


def test_unseen_ids_are_treated_alike_in_training_evaluation_and_export(make):
    table = make(padding_idx=4)
    ids = torch.tensor([*UNSEEN, 4, 0, IDS - 1])
    exported = torch.export.export(table, (torch.zeros_like(ids),)).module()
    assert torch.equal(exported(ids), table(ids))
    assert torch.equal(table.eval()(ids), table.train()(ids))


def test_an_exported_table_takes_batches_of_any_size(make):
    table = make()
    size = ({0: torch.export.Dim("size")},)
    exported = torch.export.export(table, (torch.arange(4),), dynamic_shapes=size).module()
    for length in (1, 7, 100):
        ids = torch.arange(length) - 2
        assert torch.equal(exported(ids), table(ids))


@pytest.mark.parametrize("padding", [0, 4, -1, -IDS])
def test_padding_is_zero_and_takes_no_gradient(make, padding):
    table = make(padding_idx=padding)
    padded = padding % IDS
    assert table.padding_idx == padded
    ids = torch.tensor([[padded, 3], [8, padded]])
    vectors = table(ids)
    assert vectors[ids == padded].eq(0).all()
    assert vectors[ids != padded].ne(0).all()
    vectors.sum().backward()
    expected = gradients(table, torch.tensor([3, 8]), torch.ones(2, DIM))
    assert all(torch.equal(value, expected[n]) for n, value in take_gradients(table).items())


@pytest.mark.parametrize("padding", [IDS, -IDS - 1])
def test_padding_has_to_be_an_id(make, padding):
    with pytest.raises(CelrecError, match="padding_idx"):
        make(padding_idx=padding)


def test_gradients_reach_the_rows_of_the_ids_used_and_only_those(make):
    table = make()
    ids = torch.tensor([[5, 5], [2, -7]])
    pull = torch.randn(2, 2, DIM)
    (table(ids) * pull).sum().backward()
    torch.testing.assert_close(take_gradients(table), gradients(table, ids, pull))


def test_the_seed_of_torch_decides_the_rows(make):
    torch.manual_seed(3)
    first = shared(make()).weight
    torch.manual_seed(3)
    second = shared(make()).weight
    assert torch.equal(first, second)
    assert not torch.equal(first, shared(make()).weight)


@pytest.mark.parametrize("dim", [1, 16, 400])
def test_rows_have_a_norm_of_about_one_whatever_the_dimension(dim):
    for table in (
        FullEmbedding(2000, dim),
        ModuloEmbedding(2000, dim, rows=2000),
        ClusteredEmbedding(2000, dim, max_clusters=2000),
        MixedEmbedding(2000, dim, shared_rows=1000, private_rows=1000),
    ):
        assert float(table.weight.detach().square().sum(1).mean()) == pytest.approx(1, abs=0.15)


def test_a_state_dict_restores_the_vectors_in_a_fresh_table(make):
    table, fresh = make(), make()
    ids = torch.tensor([*range(IDS), *UNSEEN])
    fresh.load_state_dict({name: value.clone() for name, value in table.state_dict().items()})
    assert torch.equal(fresh(ids), table(ids))


def test_a_copy_goes_its_own_way(make):
    table = make()
    ids = torch.arange(IDS)
    before = table(ids).detach()
    twin = copy.deepcopy(table)
    assert torch.equal(twin(ids), before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter += 1
    assert torch.equal(table(ids), before)
    assert torch.equal(twin(ids), before + 1)


def test_moving_to_another_float_type_moves_the_vectors_only(make):
    table = make()
    ids = torch.tensor([*range(IDS), *UNSEEN])
    before, rows = table(ids).double(), shared(table).row_of(ids)
    table.to(torch.float64)
    assert table(ids).dtype == torch.float64
    assert torch.equal(table(ids), before)
    assert torch.equal(shared(table).row_of(ids), rows)


def test_the_float_type_can_be_chosen(make):
    table = make(dtype=torch.float64, padding_idx=1)
    assert table(torch.arange(IDS)).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_memory_for_training_is_the_bytes_held(make, dtype):
    table = make(dtype=dtype)
    rows = sum(tensor.numel() * tensor.element_size() for tensor in table.parameters())
    index = sum(tensor.numel() * tensor.element_size() for tensor in table.buffers())
    memory = table.memory(training=True)
    assert (memory.table, memory.index, memory.total) == (rows, index, rows + index)
    assert table.memory().total <= memory.total


@pytest.mark.parametrize("sizes", [(0, 3), (-1, 3), (3, 0)])
def test_sizes_have_to_be_positive(sizes):
    with pytest.raises(CelrecError, match="must be positive"):
        FullEmbedding(*sizes)
    with pytest.raises(CelrecError, match="must be positive"):
        ModuloEmbedding(*sizes, rows=1)
    with pytest.raises(CelrecError, match="must be positive"):
        ClusteredEmbedding(*sizes, max_clusters=1)
    with pytest.raises(CelrecError, match="must be positive"):
        MixedEmbedding(*sizes, shared_rows=1, private_rows=0)


def test_a_model_is_captured_whole_by_the_compiler(make):
    # Capture and differentiation are checked without the minutes that machine code can take.
    table = make(padding_idx=2)
    compiled = torch.compile(table, backend="aot_eager", fullgraph=True)
    ids = torch.tensor([*range(IDS), *UNSEEN])
    assert torch.equal(compiled(ids), table(ids))
    compiled(ids).square().sum().backward()
    found = take_gradients(table)
    table(ids).square().sum().backward()
    torch.testing.assert_close(take_gradients(table), found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, by torch
def test_machine_code_of_the_compiler_gives_the_same_vectors(make):
    table = make(padding_idx=2)
    ids = torch.tensor([*range(IDS), *UNSEEN])
    assert torch.equal(torch.compile(table, fullgraph=True)(ids), table(ids))
