import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.adaptive import AdaptiveEmbedding
from celrec.embeddings.cafe import CafeEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Memory
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding

IDS, DIM = 12, 4
EVERYONE = torch.tensor([*range(IDS), -1, -IDS, IDS, 2**40, -(2**40), 2**63 - 1, -(2**63)])


def full(**options):
    return FullEmbedding(IDS, DIM, **options)


def modulo(**options):
    return ModuloEmbedding(IDS, DIM, rows=5, seed=1, **options)


def clustered(**options):
    table = ClusteredEmbedding(IDS, DIM, max_clusters=6, **options)
    table.start_from(torch.arange(IDS) % 4)
    return table


def mixed(**options):
    warm = torch.arange(IDS) < 3
    return MixedEmbedding.personalise(clustered(**options), warm)


def adaptive(**options):
    table = AdaptiveEmbedding(IDS, DIM, rows=7, **options)
    table.promote(torch.tensor([4, 2]))
    return table


def cafe(**options):
    return CafeEmbedding(IDS, DIM, rows=40, **options)


@pytest.fixture(
    params=[full, modulo, clustered, mixed, adaptive, cafe], ids=lambda make: make.__name__
)
def make(request):
    return request.param


def stretched(make, **options):
    """A table whose steps are longer or shorter than the values need."""
    table = QuantisedEmbedding(make(**options))
    with torch.no_grad():
        table.stretch.copy_(torch.linspace(-20, 40, len(table.stretch)))
    return table


def slow(row, stretch):
    """Integers and the step of a row, by hand."""
    step = (1 + stretch / 64) * max(abs(value) for value in row) / 127
    return [max(-127, min(127, round(value / step))) for value in row], step


def test_a_vector_is_whole_numbers_times_the_step_of_its_row(make):
    table = stretched(make)
    rows = table.rows.weight.tolist()
    for one, vector in zip(EVERYONE, table(EVERYONE).detach(), strict=True):
        row = int(table.row_of(one))
        whole, step = slow(rows[row], float(table.stretch[row].detach()))
        torch.testing.assert_close(vector, torch.tensor([step * value for value in whole]))


def test_at_first_a_vector_is_within_half_a_step_of_its_row(make):
    table = QuantisedEmbedding(make())
    rows = table.rows(EVERYONE).detach()
    largest = rows.abs().amax(1, keepdim=True)
    assert ((table(EVERYONE) - rows).abs() <= largest / 127 * 0.5001).all()
    assert (table(EVERYONE) != rows).any()


def test_a_row_of_zeros_stays_so():
    table = QuantisedEmbedding(modulo())
    with torch.no_grad():
        table.rows.weight.zero_()
    table(EVERYONE).sum().backward()
    assert table.rows.weight.grad.isfinite().all()
    assert table.stretch.grad.isfinite().all()
    table.adapt()
    table.pack()
    assert not table(EVERYONE).any()


def test_gradients_go_straight_through_and_steps_have_that_of_lsq():
    table = stretched(full)
    ids = torch.tensor([0, 3, 3, 11, -1])
    pull = torch.randn(5, DIM)
    (table(ids) * pull).sum().backward()
    rows, stretches = table.rows.weight.detach(), table.stretch.detach()
    of_rows, of_steps = torch.zeros_like(rows), torch.zeros_like(stretches)
    clipped = 0
    for one, force in zip(ids, pull, strict=True):
        row = int(table.row_of(one))
        plain = float(rows[row].abs().max()) / 127
        step = (1 + float(stretches[row]) / 64) * plain
        for place in range(DIM):
            exact = float(rows[row, place]) / step
            if abs(exact) < 127.5:
                of_rows[row, place] += force[place]
                slope = round(exact) - exact
            else:
                clipped += 1
                slope = 127 if exact > 0 else -127
            # The step moves by plain / 64 when the stretch moves by 1.
            of_steps[row] += force[place] * slope * plain / 64 / (127 * DIM) ** 0.5
    assert clipped
    torch.testing.assert_close(table.rows.weight.grad, of_rows)
    torch.testing.assert_close(table.stretch.grad, of_steps, rtol=1e-3, atol=1e-6)


def test_the_largest_value_of_a_row_learns_like_any_other():
    table = QuantisedEmbedding(FullEmbedding(500, 7))
    table(torch.arange(500)).sum().backward()
    assert (table.rows.weight.grad[:-1] == 1).all()


def test_adapting_puts_rows_on_their_grids_and_changes_no_step(make):
    table = stretched(make)
    row = table.row_of(EVERYONE)
    before = table.rows.weight.detach().clone()
    steps = (1 + table.stretch.detach() / 64) * before.abs().amax(1) / 127
    table.adapt()
    after = table.rows.weight.detach()
    used = row.unique()
    exact = (after / steps[:, None])[used]
    torch.testing.assert_close(exact, exact.round(), atol=1e-3, rtol=0)
    assert exact.abs().max() <= 127.001
    inside = before[used].abs() <= 127 * steps[used, None]
    moved = ((after - before)[used].abs() / steps[used, None])[inside]
    assert moved.max() < 1.001
    torch.testing.assert_close(table(EVERYONE).detach(), after[row])


def test_rows_on_the_grid_stay_there(make):
    table = stretched(make)
    table.adapt()
    before = table(EVERYONE).detach()
    for _ in range(20):
        table.adapt()
    torch.testing.assert_close(table(EVERYONE).detach(), before)


def test_rounding_is_right_on_average():
    table = QuantisedEmbedding(FullEmbedding(20_000, 2))
    with torch.no_grad():
        table.rows.weight.copy_(torch.tensor([127.0, 30.3]))
    table.adapt()
    values = table.rows.weight[:, 1].detach().round(decimals=3)
    assert set(values.tolist()) == {30, 31}
    assert float(values.mean()) == pytest.approx(30.3, abs=0.02)


def test_small_gradients_are_not_lost():
    # The nearest number would always be the one where it came from.
    table = QuantisedEmbedding(FullEmbedding(1000, 2))
    with torch.no_grad():
        table.rows.weight.copy_(torch.tensor([127.0, 10.0]))
    optimizer = torch.optim.SGD([table.rows.weight], lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        table(torch.arange(1000))[:, 1].sum().backward()
        optimizer.step()
        table.adapt(optimizer)
    assert float(table.rows.weight[:-1, 1].detach().mean()) == pytest.approx(5, abs=0.5)


def test_training_brings_vectors_near_their_targets():
    torch.manual_seed(0)
    table = QuantisedEmbedding(FullEmbedding(30, 8))
    target = torch.randn(30, 8)
    optimizer = torch.optim.Adam(table.parameters(), lr=0.02)
    for _ in range(400):
        optimizer.zero_grad()
        (table(torch.arange(30)) - target).square().sum().backward()
        optimizer.step()
        table.adapt(optimizer)
    table.pack()
    assert (table(torch.arange(30)) - target).square().mean().sqrt() < 0.05


def test_chance_comes_from_the_seed_and_the_number_of_rounds():
    first, second = QuantisedEmbedding(full(), seed=1), QuantisedEmbedding(full(), seed=1)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    other = QuantisedEmbedding(copy.deepcopy(first.rows), seed=2)
    for table in (first, second, other):
        torch.rand(table.seed)
        table.adapt()
    assert torch.equal(first.rows.weight, second.rows.weight)
    assert not torch.equal(first.rows.weight, other.rows.weight)


def test_values_that_are_not_negative_stay_so(make):
    table = stretched(make)
    assert table.non_negative_parameters() == [table.rows.weight]
    with torch.no_grad():
        table.rows.weight.abs_()
    table.adapt()
    assert (table.rows.weight >= 0).all()
    assert (table(EVERYONE) >= 0).all()


@pytest.mark.parametrize("adapted", [True, False])
def test_packing_changes_no_vector_and_keeps_no_floats(make, adapted):
    table = stretched(make, padding_idx=3)
    if adapted:
        table.adapt()
    before = table(EVERYONE).detach()
    serving = table.memory()
    table.pack()
    assert torch.equal(table(EVERYONE), before)
    assert table.rows.weight.dtype == torch.int8
    assert not any(parameter.requires_grad for parameter in table.parameters())
    assert table.memory() == serving
    state = copy.deepcopy(table.state_dict())
    table.adapt()
    table.pack()
    assert all(torch.equal(value, state[name]) for name, value in table.state_dict().items())
    assert "packed" in repr(table)
    floats = [
        value.numel()
        for name, value in state.items()
        if value.is_floating_point() and "sketch" not in name
    ]
    assert floats == [len(table.rows.weight)]


@pytest.mark.parametrize("packed", [True, False])
def test_the_settings_and_the_state_restore_the_table(make, packed):
    table = stretched(make)
    table.adapt()
    if packed:
        table.pack()
    settings = table.settings()
    fresh = QuantisedEmbedding(**{**settings, "rows": make()})
    fresh.load_state_dict(copy.deepcopy(table.state_dict()))
    assert torch.equal(fresh(EVERYONE), table(EVERYONE))
    twin = QuantisedEmbedding(**copy.deepcopy(settings))
    twin.load_state_dict(copy.deepcopy(table.state_dict()))
    assert torch.equal(twin(EVERYONE), table(EVERYONE))
    assert twin.packed == packed


def test_packed_rows_cannot_be_trained_again():
    table = QuantisedEmbedding(modulo(), packed=True)
    with pytest.raises(CelrecError, match=r"packed: rows of torch.int8 cannot be trained"):
        QuantisedEmbedding(table.rows)


def test_memory_is_the_bytes_held_and_for_serving_a_byte_per_value(make):
    for table in (QuantisedEmbedding(make()), QuantisedEmbedding(make(), packed=True)):
        held = sum(value.nbytes for value in table.state_dict().values())
        parameters = sum(value.nbytes for value in table.parameters())
        memory = table.memory(training=True)
        assert (memory.table, memory.total) == (parameters, held)
    rows = make().memory()
    count = rows.table // 4 // DIM
    assert table.memory() == Memory(count * (DIM + 4), rows.index)


def test_rows_that_are_split_beneath_keep_their_vectors():
    table = QuantisedEmbedding(clustered())
    table.adapt()
    before = table(EVERYONE).detach()
    new = table.rows.split(1, torch.tensor([5]))
    assert table.num_rows == 5
    assert int(table.row_of(torch.tensor(5))) == new
    torch.testing.assert_close(table(EVERYONE).detach(), before)
    table(torch.tensor([5])).sum().backward()
    torch.optim.SGD(table.parameters(), lr=0.1).step()
    table.adapt()
    changed = ((table(EVERYONE) - before).abs() > 0.01).any(1).nonzero().flatten().tolist()
    assert changed == [5]
    table.pack()
    assert table.memory().table == 5 * (DIM + 4)


@pytest.mark.parametrize("packed", [True, False])
def test_it_grows_as_its_rows_do(make, packed):
    table = stretched(make)
    if packed:
        table.pack()
    before = table(EVERYONE).detach()
    table.grow(IDS + 3)
    assert table.num_embeddings == table.rows.num_embeddings == IDS + 3
    assert torch.equal(table(EVERYONE), before)
    if make in (clustered, adaptive):
        fresh = QuantisedEmbedding(make(), packed=packed)
        fresh.load_state_dict(copy.deepcopy(table.state_dict()))
        assert fresh.num_embeddings == IDS + 3
        assert torch.equal(fresh(EVERYONE), before)


def test_the_rows_beneath_are_adapted_too():
    table = QuantisedEmbedding(AdaptiveEmbedding(IDS, DIM, rows=6, promote_above=1))
    table(torch.tensor([3, 3]))
    table.adapt()
    assert table.rows.private(torch.tensor([3, 4])).tolist() == [True, False]
    assert table.traits == AdaptiveEmbedding.traits
    assert table.penalty() is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_float_types_can_be_used(dtype):
    table = QuantisedEmbedding(full(dtype=dtype))
    table(EVERYONE).sum().backward()
    table.adapt()
    before = table(EVERYONE)
    assert before.dtype == dtype
    table.pack()
    assert torch.equal(table(EVERYONE), before)
    assert table.to(torch.float64)(EVERYONE).dtype == torch.float64


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.booleans())
def test_any_integer_has_a_finite_vector(ids, packed):
    table = QuantisedEmbedding(modulo(), packed=packed)
    assert table(torch.tensor(ids, dtype=torch.int64)).isfinite().all()
