"""The ticks of all methods, low time, low memory and new ids, are measured and not believed."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from celrec import CelrecError, Clusterer, Planted
from celrec.embeddings.adaptive import AdaptiveEmbedding
from celrec.embeddings.binary_code import BinaryCodeEmbedding
from celrec.embeddings.cafe import CafeEmbedding
from celrec.embeddings.cce import CceEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.compositional import CompositionalEmbedding
from celrec.embeddings.deep_hash import DeepHashEmbedding
from celrec.embeddings.description import table_classes
from celrec.embeddings.embedding import Embedding, Traits
from celrec.embeddings.four_bit import FourBitEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hash_code import HashCodeEmbedding, HashGnn, hash_codes
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.packed import PackedLevels
from celrec.embeddings.personal import BiasedEmbedding, PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.embeddings.prehash import PreHashEmbedding
from celrec.embeddings.prehash_history import HistoryPreHashEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.embeddings.robe import RobeEmbedding
from celrec.embeddings.tensor_train import TensorTrainEmbedding
from celrec.embeddings.tree import TreeEmbedding

IDS, DIM = 5000, 64
FEW, MANY = 64, 1024
BATCH = torch.randint(IDS, (256,), generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Method:
    """How a table of so many rows is made, and what is claimed of it."""

    make: Callable[[int, int, int], Embedding]
    """From ids, dimension and rows."""
    ticks: str
    """Low time, low memory, incremental."""
    elsewhere: Callable[[int], int] | None = None
    """The work for so many rows, where it is not in the table but in what goes with it."""


def clustered(ids, dim, rows):
    table = ClusteredEmbedding(ids, dim, max_clusters=rows)
    table.start_from(torch.arange(ids) % rows)
    return table


def four_bit(ids, dim, rows):
    del rows
    return FourBitEmbedding(ids, dim)


def packed_levels(ids, dim, rows):
    return PackedLevels.of(clustered(ids, dim, rows))


def levelled(ids, dim, rows):
    table = LevelledEmbedding(ids, dim, max_clusters=rows // 2)
    for level in table.clustered_levels:
        level.start_from(torch.arange(ids) % (rows // 2))
    return table


def mixed(ids, dim, rows):
    return MixedEmbedding(ids, dim, shared_rows=rows - rows // 2, private_rows=rows // 2)


def of_kind(kind, **settings):
    return lambda ids, dim, rows: kind(ids, dim, rows=rows, **settings)


def around(kind, make):
    return lambda ids, dim, rows: kind(make(ids, dim, rows))


def full(ids, dim, rows):
    del rows
    return FullEmbedding(ids, dim)


def personal(ids, dim, rows):
    """With a row for everybody, as it may come to."""
    table = PersonalEmbedding(ModuloEmbedding(ids, dim, rows=rows))
    table.give(torch.arange(ids))
    return table


def planted(**settings):
    """Trees that have begun, which is done once and not at every step."""

    def make(ids, dim, rows):
        table = TreeEmbedding(ids, dim, rows=rows, **settings)
        table.centre.copy_(table.weight[:rows].detach())
        return table

    return make


class Work(TorchDispatchMode):
    """Counts the numbers that operations write.

    Views write nothing, and what is written in a few places counts as that many. What
    has the shape of one of the `dense` tensors is not counted: their gradients and the
    steps of their optimiser are as large as they are, whatever the method does.
    """

    _INTO = ("index_put_", "_index_put_impl_", "index_add_", "index_copy_", "index_fill_")

    def __init__(self, dense=()):
        super().__init__()
        self.written = 0
        self._dense = {tensor.shape for tensor in dense}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        found = func(*args, **(kwargs or {}))
        if func.is_view:
            return found
        if func._schema.name.split("::")[1] in self._INTO:
            source = [leaf for leaf in tree_leaves(args[1:]) if isinstance(leaf, torch.Tensor)]
            self.written += sum(tensor.numel() for tensor in source)
            return found
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and tensor.shape not in self._dense:
                self.written += tensor.numel()
        return found


def step(table):
    """The work of one step of training with what goes with it: lookup, gradients, `adapt`."""
    with Work(table.parameters()) as work:
        loss = table(BATCH % table.num_embeddings).square().sum()
        if loss.requires_grad:  # packed tables are not trained
            loss.backward()
        table.adapt()
    return work.written


def reassigning(rows):
    """The work of CEL's second move: every id is judged by the rows of all clusters."""
    table = clustered(IDS, 2, rows)
    ids = torch.arange(IDS)
    clusterer = Clusterer(table, None, lambda rows: table(ids[rows]).square().sum(-1))
    clusterer.evidence.observe(ids)
    with Work() as work:
        clusterer.reassign()
    return work.written


def coding(rows):
    """The work of comparing codes with those that have a row, once there are codes."""
    table = HashCodeEmbedding(IDS, 2, rows=rows)
    bits = torch.arange(IDS)[:, None] >> torch.arange(13) & 1
    with Work() as work:
        table.set_codes(bits.bool(), torch.ones(IDS))
    return work.written


METHODS = {
    "adaptive": Method(of_kind(AdaptiveEmbedding), "✓✓✓"),
    "adaptive, counting": Method(of_kind(AdaptiveEmbedding, promote_above=0), "✓✓✓"),
    "biased": Method(around(BiasedEmbedding, of_kind(ModuloEmbedding)), "✓✓✓"),
    "biased cel": Method(around(BiasedEmbedding, clustered), "✗✓✓", elsewhere=reassigning),
    "binary-code": Method(of_kind(BinaryCodeEmbedding), "✓✓✓"),
    "binary-code, numbered": Method(of_kind(BinaryCodeEmbedding, numbered=True), "✓✓✓"),
    "cafe": Method(of_kind(CafeEmbedding), "✓✓✓"),
    "cce": Method(of_kind(CceEmbedding, every=1), "✗✓✓"),
    "cel": Method(clustered, "✗✓✓", elsewhere=reassigning),
    "compositional": Method(of_kind(CompositionalEmbedding), "✓✓✗"),
    "deep-hash": Method(of_kind(DeepHashEmbedding), "✗✓✓"),
    "four-bit": Method(four_bit, "✓✗✓"),
    "full": Method(full, "✓✗✓"),
    "hash-code": Method(of_kind(HashCodeEmbedding), "✗✗✗", elsewhere=coding),
    "levelled": Method(levelled, "✗✓✓", elsewhere=reassigning),
    "mixed": Method(mixed, "✗✓✓", elsewhere=reassigning),
    "modulo": Method(of_kind(ModuloEmbedding), "✓✓✓"),
    "packed-levels": Method(packed_levels, "✓✓✓"),
    "personal": Method(personal, "✓✗✓"),
    "posterior": Method(of_kind(PosteriorEmbedding), "✗✗✓"),
    "prehash": Method(of_kind(PreHashEmbedding), "✗✗✗"),
    "prehash, 4 rows": Method(of_kind(PreHashEmbedding, k=4), "✓✓✗"),
    "prehash-history": Method(of_kind(HistoryPreHashEmbedding), "✗✓✓"),
    "quantised": Method(around(QuantisedEmbedding, of_kind(ModuloEmbedding)), "✓✓✓"),
    "robe": Method(of_kind(RobeEmbedding), "✓✓✓"),
    "tensor-train": Method(of_kind(TensorTrainEmbedding), "✗✓✗"),
    "tree": Method(planted(root=True), "✗✗✗"),
    "tree, leaves without a root": Method(planted(root=False, share=False), "✗✗✗"),
}


def by_name(names):
    return pytest.mark.parametrize("name", names)


def test_all_methods_are_here():
    made = {type(method.make(20, 4, 5)) for method in METHODS.values()}
    assert made == set(table_classes().values())


@by_name(METHODS)
def test_traits_are_the_ones_that_are_measured_here(name):
    assert METHODS[name].make(20, 4, 5).traits.ticks == METHODS[name].ticks


def test_work_is_counted_by_what_is_written():
    table = torch.zeros(100, 3)
    with Work() as work:
        rows = table.index_select(0, torch.arange(5))
        assert work.written == 5 + 15
        rows.view(-1)[3:].unsqueeze(0)
        assert work.written == 20
        table[torch.tensor([1, 2])] = 1.0
        assert work.written < 30
    with Work([table]) as work:
        torch.ones(100, 3) + torch.ones(4)[0]
        assert work.written == 4


@by_name([name for name, method in METHODS.items() if method.ticks[0] == "✓"])
def test_where_time_is_said_to_be_low_a_step_takes_no_longer_with_many_rows(name):
    few, many = (
        step(METHODS[name].make(rows if name == "full" else IDS, DIM, rows)) for rows in (FEW, MANY)
    )
    assert many < 2 * few


@by_name([name for name, method in METHODS.items() if method.ticks[0] == "✗"])
def test_where_time_is_not_said_to_be_low_there_is_a_reason(name):
    method = METHODS[name]
    few, many = (step(method.make(IDS, DIM, rows)) for rows in (FEW, MANY))
    if method.elsewhere is not None:
        assert many == few
        few, many = method.elsewhere(FEW), method.elsewhere(MANY)
    assert many > 3 * few


def share_of_a_full_table(table):
    held = max(table.memory(training=True).total, table.preparation_bytes)
    return held / FullEmbedding(table.num_embeddings, table.embedding_dim).memory().total


@by_name([name for name, method in METHODS.items() if method.ticks[1] == "✓"])
def test_where_memory_is_said_to_be_low_few_rows_take_little_in_training(name):
    rows = IDS // 20
    shares = [share_of_a_full_table(METHODS[name].make(IDS, dim, rows)) for dim in (64, 256)]
    # What is held for each id weighs less the longer rows are.
    assert shares[0] < 0.3
    assert shares[1] < 0.16


@by_name([name for name, method in METHODS.items() if method.ticks[1] == "✗"])
def test_where_memory_is_not_said_to_be_low_it_is_not(name):
    if name == "hash-code":
        log = Planted(rows=3000, users=300, items=200).interactions()
        _, held = hash_codes(log, "items", 10, 0, HashGnn(steps=1))
        full_tables = (log.num_users + log.num_items) * DIM * 4
        assert held > 0.3 * full_tables
    else:
        least = 1 / 8 if name == "four-bit" else 1  # it is a full table in fewer bits
        assert share_of_a_full_table(METHODS[name].make(IDS, DIM, IDS // 20)) >= least


@by_name([name for name, method in METHODS.items() if method.ticks[2] == "✓"])
def test_where_new_ids_are_said_to_be_welcome_they_learn_and_nothing_else_is_lost(name):
    torch.manual_seed(0)
    table = METHODS[name].make(200, 8, 20)
    before = table(torch.arange(200)).detach()
    table.grow(300)
    assert torch.equal(table(torch.arange(200)), before)
    if not any(one.requires_grad for one in table.parameters()):
        return
    ids, target = torch.tensor([200, 299]), torch.full((2, table.embedding_dim), 0.5)
    optimizer = torch.optim.Adam(table.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        loss = (table(ids) - target).square().sum()
        loss.backward()
        optimizer.step()
        table.adapt(optimizer)
    assert loss.item() < 0.1


@by_name([name for name, method in METHODS.items() if method.ticks[2] == "✗"])
def test_where_new_ids_are_not_said_to_be_welcome_that_is_reported(name):
    table = METHODS[name].make(200, 8, 20)
    with pytest.raises(CelrecError, match="cannot grow from 200 to"):
        table.grow(201)
    assert table.num_embeddings == 200


def test_ticks_are_in_the_order_of_the_paper():
    assert Traits(low_time=True, low_memory=False, incremental=False).ticks == "✓✗✗"
    assert Traits(low_time=False, low_memory=True, incremental=False).ticks == "✗✓✗"
    assert Traits(low_time=False, low_memory=False, incremental=True).ticks == "✗✗✓"
