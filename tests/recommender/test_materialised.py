import copy

import pytest
import torch

from celrec.embeddings.binary_code import BinaryCodeEmbedding
from celrec.embeddings.compositional import CompositionalEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.personal import BiasedEmbedding
from celrec.embeddings.prehash import PreHashEmbedding
from celrec.offline.factorisation_solver import initialise_factors
from celrec.recommender.model import Model
from celrec.recommender.vectors import Materialised

IDS, DIM = 9, 4
EVERYONE = torch.tensor([*range(IDS), -1, IDS, 2**40, -(2**63)])


def binary_code(**options):
    return BinaryCodeEmbedding(IDS, DIM, rows=6, **options)


def compositional(**options):
    return CompositionalEmbedding(IDS, DIM, rows=6, **options)


def prehash(**options):
    return PreHashEmbedding(IDS, DIM, rows=4, k=2, **options)


@pytest.fixture(params=[binary_code, compositional, prehash], ids=lambda make: make.__name__)
def make(request):
    return request.param


def test_every_id_has_a_row_that_is_its_vector(make):
    source = make()
    view = Materialised(source)
    ids = torch.arange(IDS)
    assert torch.equal(view(ids), source(ids))
    assert torch.equal(view.weight[view.row_of(ids)], source(ids))
    assert view.source is source
    assert (view.num_rows, view.embedding_dim) == (IDS + 1, DIM)


def test_unseen_ids_share_the_row_of_the_unseen_id_minus_one(make):
    source = make()
    unseen = Materialised(source)(EVERYONE[IDS:])
    assert torch.equal(unseen, source(torch.tensor(-1)).expand(4, -1))


def test_it_shows_what_was_when_it_was_last_refreshed(make):
    source = make()
    view = Materialised(source)
    before = view.weight.clone()
    with torch.no_grad():
        for parameter in source.non_negative_parameters():
            parameter.mul_(3).add_(0.5)
    assert torch.equal(view.weight, before)
    view.refresh()
    assert torch.equal(view(torch.arange(IDS)), source(torch.arange(IDS)))
    assert not torch.equal(view.weight, before)


def test_padding_is_a_row_of_zeros(make):
    view = Materialised(make(padding_idx=3))
    assert view.weight[3].eq(0).all()
    assert view.weight[[0, 4]].ne(0).any()


def test_the_rows_have_the_float_type_of_the_source(make):
    source = make(dtype=torch.float64)
    view = Materialised(source)
    assert view.weight.dtype == torch.float64
    assert torch.equal(view(torch.arange(IDS)), source(torch.arange(IDS)))


def test_making_one_draws_no_random_number_and_leaves_the_source_as_it_was(make):
    source = make()
    state = copy.deepcopy(source.state_dict())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    view = Materialised(source)
    view.reset_parameters()
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(value, state[name]) for name, value in source.state_dict().items())


def test_its_rows_are_not_learned_and_the_parameters_of_the_source_are_not_its_own(make):
    source = make()
    view = Materialised(source)
    assert [name for name, _ in view.named_parameters()] == ["weight"]
    assert not view.weight.requires_grad
    assert not view(EVERYONE).requires_grad
    assert source(EVERYONE).requires_grad


def test_refreshing_counts_as_no_lookup_of_training():
    source = prehash().train()
    before = source.gain.clone()
    view = Materialised(source)
    view.refresh()
    assert torch.equal(source.gain, before)


# In a factorisation.


def test_a_factorisation_writes_out_only_the_tables_without_rows(make):
    items = make()
    model = Model(FullEmbedding(5, DIM), items)
    assert model.user_rows is model.users
    assert isinstance(model.item_rows, Materialised)
    assert model.item_rows.source is items
    assert model.item_rows is model.item_rows


def test_a_view_is_not_part_of_the_state_or_the_parameters(make):
    model = Model(FullEmbedding(5, DIM), make())
    names = list(model.state_dict()), [name for name, _ in model.named_parameters()]
    _ = model.item_rows
    assert (list(model.state_dict()), [name for name, _ in model.named_parameters()]) == names
    assert all(name.startswith(("users.", "items.")) for name in names[0])


def test_biases_are_not_written_out():
    source = compositional()
    model = Model(BiasedEmbedding(FullEmbedding(5, DIM)), BiasedEmbedding(source))
    assert model.item_rows.source is source
    assert model.item_rows.embedding_dim == DIM


def test_a_table_that_takes_the_place_of_another_has_a_view_of_its_own(make):
    model = Model(FullEmbedding(5, DIM), make())
    first = model.item_rows
    model.items = make()
    assert model.item_rows is not first
    assert model.item_rows.source is model.items


@pytest.mark.parametrize("biased", [False, True])
def test_factors_begin_as_the_table_was_made_and_non_negative_without_biases(make, biased):
    items = make()
    before = copy.deepcopy(items)
    tables = FullEmbedding(5, DIM), items
    model = Model(*(map(BiasedEmbedding, tables) if biased else tables))
    initialise_factors(model, torch.Generator().manual_seed(0))
    if not biased:
        with torch.no_grad():
            for parameter in before.non_negative_parameters():
                parameter.abs_()
        assert items(EVERYONE).ge(0).all()
    assert torch.equal(items(EVERYONE), before(EVERYONE))
    assert torch.equal(model.item_rows(torch.arange(IDS)), items(torch.arange(IDS)))
