import copy
import json

import pytest
import torch

from celrec import CelrecError
from celrec.embeddings.biased import BiasedEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.modulo import ModuloEmbedding
from celrec.embeddings.registry import EMBEDDINGS, describe_embedding, make_embedding

IDS = 9


def cel():
    table = ClusteredEmbedding(IDS, 3, max_clusters=4, padding_idx=-2)
    table.split(0, torch.tensor([1, 2, 8]))
    table.split(1, torch.tensor([2]))
    table.unseen_cluster = 1
    return table


def full():
    return FullEmbedding(IDS, 3)


def mixed():
    return MixedEmbedding.personalise(cel(), torch.arange(IDS) % 2 == 0)


def modulo():
    return ModuloEmbedding(IDS, 3, rows=4, seed=2**70)  # JSON knows integers of any size


def biased():
    return BiasedEmbedding(cel())


def biased_mixed():
    return BiasedEmbedding(mixed())


MAKERS = [biased, biased_mixed, cel, full, mixed, modulo]
SETTINGS = {
    cel: {"num_embeddings": 9, "embedding_dim": 3, "padding_idx": 7, "max_clusters": 4},
    full: {"num_embeddings": 9, "embedding_dim": 3, "padding_idx": None},
    mixed: {
        "num_embeddings": 9,
        "embedding_dim": 3,
        "padding_idx": 7,
        "shared_rows": 2,
        "private_rows": 5,
    },
    modulo: {
        "num_embeddings": 9,
        "embedding_dim": 3,
        "padding_idx": None,
        "rows": 4,
        "seed": 2**70,
    },
}


def written_and_read(table):
    return make_embedding(json.loads(json.dumps(describe_embedding(table))))


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__)
def table(request):
    made = request.param()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


def test_every_method_is_tried_here():
    assert {type(make()) for make in MAKERS} == set(EMBEDDINGS.values())


@pytest.mark.parametrize("make", SETTINGS, ids=lambda make: make.__name__)
def test_settings_are_what_the_class_is_called_with(make):
    table = make()
    assert table.settings() == SETTINGS[make]
    again = type(table)(**table.settings())
    assert again.settings() == table.settings()
    assert {n: v.shape for n, v in again.state_dict().items()} == {
        n: v.shape for n, v in table.state_dict().items()
    }


def test_the_setting_of_a_biased_table_is_the_table_of_its_rows():
    table = biased()
    assert table.settings() == {"rows": table.rows}


def test_a_description_is_the_name_of_the_method_and_its_settings():
    assert describe_embedding(modulo()) == {"method": "modulo", **SETTINGS[modulo]}
    assert describe_embedding(biased_mixed()) == {
        "method": "biased",
        "rows": {"method": "mixed", **SETTINGS[mixed]},
    }


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_every_method_is_described_by_its_own_name(name):
    make = {"biased": biased, "cel": cel, "full": full, "mixed": mixed, "modulo": modulo}[name]
    assert describe_embedding(make())["method"] == name
    assert type(make_embedding(describe_embedding(make()))) is EMBEDDINGS[name]


def test_a_table_made_from_a_description_has_the_same_one(table):
    description = describe_embedding(table)
    assert json.loads(json.dumps(description)) == description
    again = written_and_read(table)
    assert type(again) is type(table)
    assert describe_embedding(again) == description
    assert describe_embedding(table) == description  # which was not changed by its use


def test_a_table_made_from_a_description_takes_the_state_of_the_first(table):
    again = written_and_read(table)
    again.load_state_dict(copy.deepcopy(table.state_dict()))
    ids = torch.tensor([*range(IDS), -1, IDS, 2**40])
    assert torch.equal(again(ids), table(ids))
    for name, value in table.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
        assert again.state_dict()[name].dtype == value.dtype
    assert again.memory() == table.memory()
    assert again.padding_idx == table.padding_idx


def test_a_table_that_has_grown_is_described_as_it_is_now():
    table = cel()
    table.grow(12)
    again = written_and_read(table)
    assert again.num_embeddings == 12
    again.load_state_dict(copy.deepcopy(table.state_dict()))
    assert torch.equal(again(torch.arange(13)), table(torch.arange(13)))


@pytest.mark.parametrize("method", ["nonsense", "Full", "", None, 3])
def test_an_unknown_method_is_told(method):
    description = {**describe_embedding(full()), "method": method}
    complaint = f"method must be one of biased, cel, full, mixed, modulo, not {method!r}"
    with pytest.raises(CelrecError) as told:
        make_embedding(description)
    assert str(told.value) == complaint


def test_a_missing_method_is_told():
    with pytest.raises(CelrecError, match="not None"):
        make_embedding({"num_embeddings": 3, "embedding_dim": 2})


def test_an_unknown_method_of_the_rows_is_told():
    with pytest.raises(CelrecError, match="not 'nonsense'"):
        make_embedding({"method": "biased", "rows": {"method": "nonsense"}})


def test_a_class_that_has_no_name_is_told():
    class Mine(FullEmbedding):
        """Not what `make_embedding` would make of the name of its parent."""

    with pytest.raises(CelrecError, match="cel, full, mixed, modulo, not Mine"):
        describe_embedding(Mine(2, 1))


def test_settings_that_make_no_sense_are_told():
    description = {**describe_embedding(cel()), "max_clusters": IDS + 1}
    with pytest.raises(CelrecError, match="max_clusters"):
        make_embedding(description)
