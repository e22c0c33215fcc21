import copy

import pytest
import torch
from torch import nn

from celrec.config.online import RowDescentConfig
from celrec.embeddings.binary_code import BinaryCodeEmbedding
from celrec.embeddings.deep_hash import DeepHashEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.prehash import PreHashEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.online.plain_tables import ComposedTableTrainer

IDS, DIM = 20, 3


def binary_code():
    return BinaryCodeEmbedding(IDS, DIM, rows=6, seed=1)


def levelled():
    table = LevelledEmbedding(IDS, DIM, max_clusters=4)
    for number, level in enumerate(table.clustered_levels, 1):
        level.start_from(torch.arange(IDS) // number % 4)
    return table


def prehash():
    table = PreHashEmbedding(IDS, DIM, rows=5, k=3, seed=1)
    table.bind(torch.arange(5))
    return table


def quantised():
    return QuantisedEmbedding(FullEmbedding(IDS, DIM), seed=1)


def deep_hash():
    return DeepHashEmbedding(IDS, DIM, rows=8, hidden=4, hashes=6, seed=1)


TABLES = [binary_code, levelled, prehash, quantised, deep_hash]
HOWS = [
    RowDescentConfig(),
    RowDescentConfig(average=False, l2=0.1),
    RowDescentConfig(rule="sgd", l2=0.1),
    RowDescentConfig(rule="sgd", average=False),
]


def make_side(make=binary_code, how=HOWS[0]):
    torch.manual_seed(2)
    return ComposedTableTrainer("items", make(), how)


def batches(count, ids=IDS):
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        yield (
            torch.randint(-1, ids, (7,), generator=generator),
            torch.randn(7, DIM, generator=generator),
        )


def learn(side, steps):
    for ids, gradients in steps:
        side.lookup(ids)
        side.learn(gradients)


def slow_optimizer(table, how):
    if how.rule == "sgd":
        return torch.optim.SGD(table.parameters(), lr=how.learning_rate, weight_decay=how.l2)
    return torch.optim.Adagrad(
        table.parameters(),
        lr=how.learning_rate,
        weight_decay=how.l2,
        initial_accumulator_value=how.first_square,
    )


@pytest.mark.parametrize("how", HOWS, ids=lambda how: f"{how.rule} {how.average}")
@pytest.mark.parametrize("make", TABLES, ids=lambda make: make.__name__)
def test_steps_are_those_of_torch_on_the_mean_or_the_sum_of_a_batch(make, how):
    side = make_side(make, how)
    table = copy.deepcopy(side.table)
    optimizer = slow_optimizer(table, how)
    for ids, gradients in batches(5):
        found = side.lookup(ids)
        assert not found.requires_grad
        torch.testing.assert_close(found, table(ids).detach())
        side.learn(gradients)
        optimizer.zero_grad()
        loss = (table(ids) * gradients).sum(1)
        (loss.mean() if how.average else loss.sum()).backward()
        optimizer.step()
        for one, other in zip(side.table.parameters(), table.parameters(), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "make", [binary_code, levelled, prehash, quantised], ids=lambda make: make.__name__
)
def test_a_non_negative_table_is_kept_so(make):
    side = make_side(make, RowDescentConfig(learning_rate=0.5, non_negative=True))
    learn(side, batches(5))
    assert bool((side.table(torch.arange(-1, IDS)) >= 0).all())
    assert bool((side.table(torch.arange(-1, IDS)) > 0).any())


@pytest.mark.parametrize("rule", ["adagrad", "sgd"])
@pytest.mark.parametrize("make", [binary_code, levelled, quantised], ids=lambda make: make.__name__)
def test_a_table_that_grows_goes_on_learning(make, rule):
    plain, grows = (make_side(make, RowDescentConfig(rule=rule)) for _ in range(2))
    for side in (plain, grows):
        learn(side, batches(3))
    grows.grow(IDS + 10)
    known = [(ids.abs(), gradients) for ids, gradients in batches(3)]  # unseen ids moved on
    for side in (plain, grows):
        learn(side, known)
    ids = torch.arange(IDS)
    torch.testing.assert_close(grows.table(ids), plain.table(ids))
    new = torch.tensor([IDS + 9])
    before = grows.lookup(new)
    grows.learn(torch.ones(1, DIM))
    assert bool((grows.lookup(new) < before).all())


def test_a_table_is_adapted_every_hundred_batches(monkeypatch):
    side, told = make_side(), []
    monkeypatch.setattr(side.table, "adapt", told.append)
    learn(side, batches(250))
    assert len(told) == 2
    assert all(isinstance(one, torch.optim.Optimizer) for one in told)


@pytest.mark.parametrize("rule", ["adagrad", "sgd"])
@pytest.mark.parametrize("make", TABLES, ids=lambda make: make.__name__)
def test_a_state_goes_on_as_if_nothing_had_happened(make, rule):
    steps = list(batches(120))
    whole, first, second = (make_side(make, RowDescentConfig(rule=rule)) for _ in range(3))
    learn(whole, steps)
    learn(first, steps[:70])
    second.table.load_state_dict(copy.deepcopy(first.table.state_dict()))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    learn(second, steps[70:])
    for name, value in whole.table.state_dict().items():
        assert torch.equal(value, second.table.state_dict()[name])


def test_bytes_are_those_of_the_optimiser():
    side = make_side()
    numbers = sum(p.numel() for p in side.table.parameters())
    assert side.nbytes == 4 * numbers + 4 * len(list(side.table.parameters()))  # and its steps
    assert make_side(how=RowDescentConfig(rule="sgd")).nbytes == 0


def test_what_no_lookup_depends_on_stays():
    class OneSided(BinaryCodeEmbedding):
        def __init__(self):
            super().__init__(IDS, DIM, rows=6)
            self.unused = nn.Parameter(torch.ones(3))

    side = make_side(OneSided, RowDescentConfig(l2=0.5))
    learn(side, batches(2))
    assert side.table.unused.tolist() == [1.0] * 3
