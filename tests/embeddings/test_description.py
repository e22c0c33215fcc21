import copy
import json

import pytest
import torch

from celrec import CelrecError
from celrec.embeddings.adaptive import AdaptiveEmbedding
from celrec.embeddings.binary_code import BinaryCodeEmbedding
from celrec.embeddings.cafe import CafeEmbedding
from celrec.embeddings.cce import CceEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.compositional import CompositionalEmbedding
from celrec.embeddings.deep_hash import DeepHashEmbedding
from celrec.embeddings.description import describe_embedding, make_embedding, table_classes
from celrec.embeddings.four_bit import FourBitEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hash_code import HashCodeEmbedding
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

IDS = 9


def cel():
    table = ClusteredEmbedding(IDS, 3, max_clusters=4, padding_idx=-2)
    table.split(0, torch.tensor([1, 2, 8]))
    table.split(1, torch.tensor([2]))
    table.unseen_cluster = 1
    return table


def full():
    return FullEmbedding(IDS, 3)


def four_bit():
    return FourBitEmbedding(IDS, 3, padding_idx=4)


def packed_levels():
    return PackedLevels(IDS, 3, rows=[5, 3], columns=[(0, 3), (1, 2)], padding_idx=2)


def levelled():
    table = LevelledEmbedding(IDS, 3, max_clusters=4, levels=2, parts=3, padding_idx=-2)
    for number, level in enumerate(table.clustered_levels):
        level.split(0, torch.tensor([number, 7, 8]))
        level.unseen_cluster = number % 2
    return table


def mixed():
    return MixedEmbedding.personalise(cel(), torch.arange(IDS) % 2 == 0)


def modulo():
    return ModuloEmbedding(IDS, 3, rows=4, seed=2**70)  # JSON knows integers of any size


def biased():
    return BiasedEmbedding(cel())


def biased_mixed():
    return BiasedEmbedding(mixed())


def adaptive():
    table = AdaptiveEmbedding(IDS, 3, rows=5, promote_above=2, seed=1)
    table.promote(torch.tensor([8]))
    return table


def binary_code():
    table = BinaryCodeEmbedding(
        IDS, 3, rows=6, split="skip", widths=[3, 1], numbered=True, seed=2, padding_idx=0
    )
    table.set_numbers(torch.arange(IDS).flip(0))
    return table


def cafe():
    return CafeEmbedding(IDS, 3, rows=24, hot_share=0.7, decay=0.9, seed=3)


def cce():
    return CceEmbedding(IDS, 3, rows=4, chunks=1, every=3, times=2, seed=4)


def compositional():
    return CompositionalEmbedding(IDS, 3, rows=8, combine="add", seed=5, padding_idx=3)


def deep_hash():
    return DeepHashEmbedding(IDS, 3, rows=20, hashes=7, hidden=3, seed=6)


def hash_code():
    table = HashCodeEmbedding(IDS, 3, rows=4, padding_idx=1)
    table.set_codes(torch.arange(IDS)[:, None] % 5 > torch.arange(4), torch.arange(IDS))
    return table


def personal():
    table = PersonalEmbedding(cel())
    table.give(torch.tensor([8, 1]))
    return table


def posterior():
    table = PosteriorEmbedding(IDS, 3, rows=4, first_rows=2, padding_idx=5)
    table.split(1, torch.ones(3))
    table.evidence[:, 1] += 3
    return table


def prehash():
    table = PreHashEmbedding(
        IDS, 3, rows=5, k=2, tries=3, explorations=4, pull=0.1, seed=7, padding_idx=2
    )
    table.bind(torch.tensor([8, 1]))
    return table


def prehash_of_all():
    return PreHashEmbedding(IDS, 3, rows=5, seed=7)


def quantised():
    return QuantisedEmbedding(cel(), seed=8)


def packed():
    table = quantised()
    table.pack()
    return table


def biased_quantised():
    return BiasedEmbedding(quantised())


def robe():
    return RobeEmbedding(IDS, 3, rows=4, chunk=2, signs=True, seed=9)


def tensor_train():
    return TensorTrainEmbedding(IDS, 3, rows=12, seed=10)


def tree():
    table = TreeEmbedding(IDS, 3, rows=4, root=False, share=False, pull=2.5, padding_idx=-1)
    table.grow_tree(torch.Generator().manual_seed(0))
    return table


def etree():
    return TreeEmbedding(IDS, 3, rows=4)


def prehash_history():
    table = HistoryPreHashEmbedding(
        IDS, 3, rows=5, k=2, length=3, partner_rows=4, hidden=6, seed=11
    )
    table.bind(torch.tensor([4, 0]))
    table.remember(torch.tensor([1, 1, 8, 2]), torch.tensor([5, 6, 7, 5]))
    return table


METHODS = {
    "adaptive": [adaptive],
    "biased": [biased, biased_mixed, biased_quantised],
    "binary-code": [binary_code],
    "cafe": [cafe],
    "cce": [cce],
    "cel": [cel],
    "compositional": [compositional],
    "deep-hash": [deep_hash],
    "four-bit": [four_bit],
    "full": [full],
    "hash-code": [hash_code],
    "levelled": [levelled],
    "mixed": [mixed],
    "modulo": [modulo],
    "packed-levels": [packed_levels],
    "personal": [personal],
    "posterior": [posterior],
    "prehash": [prehash, prehash_of_all],
    "prehash-history": [prehash_history],
    "quantised": [quantised, packed],
    "robe": [robe],
    "tensor-train": [tensor_train],
    "tree": [tree, etree],
}
MAKERS = [make for makers in METHODS.values() for make in makers]
COMMON = {"num_embeddings": 9, "embedding_dim": 3, "padding_idx": None}
SETTINGS = {
    adaptive: {**COMMON, "rows": 5, "promote_above": 2, "seed": 1},
    binary_code: {
        **COMMON,
        "padding_idx": 0,
        "rows": 6,
        "split": "skip",
        "widths": [3, 1],
        "numbered": True,
        "seed": 2,
    },
    cafe: {**COMMON, "rows": 24, "hot_share": 0.7, "decay": 0.9, "seed": 3},
    cce: {**COMMON, "rows": 4, "chunks": 1, "every": 3, "times": 2, "seed": 4},
    cel: {**COMMON, "padding_idx": 7, "max_clusters": 4},
    compositional: {**COMMON, "padding_idx": 3, "rows": 8, "combine": "add", "seed": 5},
    deep_hash: {**COMMON, "rows": 20, "hashes": 7, "hidden": 3, "seed": 6},
    etree: {**COMMON, "rows": 4, "root": True, "share": True, "pull": 20.0},
    four_bit: {**COMMON, "padding_idx": 4},
    full: COMMON,
    hash_code: {**COMMON, "padding_idx": 1, "rows": 4},
    levelled: {**COMMON, "padding_idx": 7, "max_clusters": 4, "levels": 2, "parts": 3},
    mixed: {**COMMON, "padding_idx": 7, "shared_rows": 2, "private_rows": 5},
    modulo: {**COMMON, "rows": 4, "seed": 2**70},
    packed_levels: {
        **COMMON,
        "padding_idx": 2,
        "rows": [5, 3],
        "columns": [[0, 3], [1, 2]],
        "bits": 8,
    },
    posterior: {**COMMON, "padding_idx": 5, "rows": 4},
    prehash: {
        **COMMON,
        "padding_idx": 2,
        "rows": 5,
        "k": 2,
        "tries": 3,
        "explorations": 4,
        "pull": 0.1,
        "seed": 7,
    },
    prehash_of_all: {
        **COMMON,
        "rows": 5,
        "k": 5,
        "tries": 8,
        "explorations": 40,
        "pull": 0.3,
        "seed": 7,
    },
    prehash_history: {
        **COMMON,
        "rows": 5,
        "k": 2,
        "length": 3,
        "partner_rows": 4,
        "hidden": 6,
        "seed": 11,
    },
    robe: {**COMMON, "rows": 4, "chunk": 2, "signs": True, "seed": 9},
    tensor_train: {**COMMON, "rows": 12, "seed": 10},
    tree: {**COMMON, "padding_idx": 8, "rows": 4, "root": False, "share": False, "pull": 2.5},
}
WRAPPERS = [biased, biased_mixed, biased_quantised, packed, personal, quantised]


def written_and_read(table):
    return make_embedding(json.loads(json.dumps(describe_embedding(table))))


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__)
def table(request):
    made = request.param()
    for parameter in made.parameters():
        if parameter.is_floating_point():
            torch.nn.init.normal_(parameter)
    return made


def test_every_method_is_tried_here():
    assert list(METHODS) == list(table_classes())
    assert {*SETTINGS, *WRAPPERS} == set(MAKERS)


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


@pytest.mark.parametrize("make", [quantised, packed])
def test_the_settings_of_a_quantised_table_say_whether_it_is_packed(make):
    table = make()
    assert table.settings() == {"rows": table.rows, "packed": make is packed, "seed": 8}


def test_a_description_is_the_name_of_the_method_and_its_settings():
    assert describe_embedding(modulo()) == {"method": "modulo", **SETTINGS[modulo]}
    assert describe_embedding(biased_mixed()) == {
        "method": "biased",
        "rows": {"method": "mixed", **SETTINGS[mixed]},
    }
    assert describe_embedding(biased_quantised()) == {
        "method": "biased",
        "rows": {
            "method": "quantised",
            "rows": {"method": "cel", **SETTINGS[cel]},
            "packed": False,
            "seed": 8,
        },
    }


@pytest.mark.parametrize("name", table_classes())
def test_every_method_is_described_by_its_own_name(name):
    for make in METHODS[name]:
        description = describe_embedding(make())
        assert description["method"] == name
        assert type(make_embedding(description)) is table_classes()[name]


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


@pytest.mark.parametrize(
    "make", [make for make in MAKERS if make().traits.incremental], ids=lambda make: make.__name__
)
def test_a_table_that_has_grown_is_described_as_it_is_now(make):
    table = make()
    table.grow(12)
    again = written_and_read(table)
    assert again.num_embeddings == 12
    again.load_state_dict(copy.deepcopy(table.state_dict()))
    assert torch.equal(again(torch.arange(13)), table(torch.arange(13)))


@pytest.mark.parametrize("method", ["nonsense", "Full", "", None, 3])
def test_an_unknown_method_is_reported(method):
    description = {**describe_embedding(full()), "method": method}
    complaint = f"method must be one of {', '.join(table_classes())}, not {method!r}"
    with pytest.raises(CelrecError) as message:
        make_embedding(description)
    assert str(message.value) == complaint


def test_a_missing_method_is_reported():
    with pytest.raises(CelrecError, match="not None"):
        make_embedding({"num_embeddings": 3, "embedding_dim": 2})


def test_an_unknown_method_of_the_rows_is_reported():
    with pytest.raises(CelrecError, match="not 'nonsense'"):
        make_embedding({"method": "biased", "rows": {"method": "nonsense"}})


def test_a_class_that_has_no_name_is_reported():
    class Mine(FullEmbedding):
        """Not what `make_embedding` would make of the name of its parent."""

    with pytest.raises(CelrecError, match="tensor-train, tree, not Mine"):
        describe_embedding(Mine(2, 1))


def test_settings_that_make_no_sense_are_reported():
    description = {**describe_embedding(cel()), "max_clusters": IDS + 1}
    with pytest.raises(CelrecError, match="max_clusters"):
        make_embedding(description)
