"""What every embedding method has to do alike."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.adaptive import AdaptiveEmbedding
from celrec.embeddings.binary_code import BinaryCodeEmbedding
from celrec.embeddings.cafe import CafeEmbedding
from celrec.embeddings.cce import CceEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.compositional import CompositionalEmbedding
from celrec.embeddings.deep_hash import DeepHashEmbedding
from celrec.embeddings.description import table_classes
from celrec.embeddings.embedding import SharedRows
from celrec.embeddings.four_bit import FourBitEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hash_code import HashCodeEmbedding
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.packed import PackedLevels
from celrec.embeddings.personal import BiasedEmbedding, PersonalEmbedding
from celrec.embeddings.posterior import IMPOSSIBLE, PosteriorEmbedding
from celrec.embeddings.prehash import PreHashEmbedding
from celrec.embeddings.prehash_history import HistoryPreHashEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.embeddings.robe import RobeEmbedding
from celrec.embeddings.tensor_train import TensorTrainEmbedding
from celrec.embeddings.tree import TreeEmbedding
from celrec.testing import check_embedding

IDS, DIM = 12, 3
UNSEEN = [-1, -IDS, -(2**40), IDS, IDS + 1, 2**40, 2**63 - 1, -(2**63)]
EVERYONE = torch.tensor([*range(IDS), *UNSEEN])


def full(**options):
    return FullEmbedding(IDS, DIM, **options)


def modulo(**options):
    return ModuloEmbedding(IDS, DIM, rows=5, seed=1, **options)


def clustered(dim=DIM, **options):
    table = ClusteredEmbedding(IDS, dim, max_clusters=6, **options)
    for cluster, leaving in [(0, [3, 4, 5, 6, 7]), (1, [5, 6]), (0, [0, 11])]:
        new = table.split(cluster, torch.tensor(leaving))
        with torch.no_grad():
            table.weight[new] += new  # as training would, so that rows can be message apart
    table.unseen_cluster = 2
    return table


def levelled(parts=1, **options):
    table = LevelledEmbedding(IDS, DIM, max_clusters=5, levels=2, parts=parts, **options)
    for number, level in enumerate(table.clustered_levels):
        for cluster, leaving in [(0, [3, 4, 5, 6, 7]), (1, [5, 6]), (0, [number % 3, 11])]:
            new = level.split(cluster, torch.tensor(leaving))
            with torch.no_grad():
                level.weight[new] += new + number
        level.unseen_cluster = 2
    return table


def product_codes(**options):
    return levelled(parts=DIM, **options)


def biased_levelled(**options):
    return biased(levelled, **options)


def four_bit(**options):
    return FourBitEmbedding(IDS, DIM, **options)


def packed_levels(**options):
    return PackedLevels.of(levelled(**options))


def packed_clusters(**options):
    return PackedLevels.of(clustered(**options), bits=32)


def packed_product_codes(**options):
    return PackedLevels.of(product_codes(**options))


def mixed(**options):
    warm = torch.zeros(IDS, dtype=torch.bool)
    warm[[0, 3, 5, 8]] = True
    return MixedEmbedding.personalise(clustered(**options), warm)


def biased(rows=clustered, **options):
    table = BiasedEmbedding(rows(**options))
    with torch.no_grad():
        table.bias.copy_(torch.arange(1, IDS + 2))
    return table


def adaptive(**options):
    table = AdaptiveEmbedding(IDS, DIM, rows=7, seed=2, **options)
    table.promote(torch.tensor([7, 0]))
    with torch.no_grad():
        table.weight += torch.arange(7)[:, None]
    return table


def counting(**options):
    return adaptive(promote_above=1, **options)


def cafe(**options):
    return CafeEmbedding(IDS, DIM, rows=24, hot_share=0.8, decay=0.9, seed=3, **options)


def cce(**options):
    return CceEmbedding(IDS, DIM, rows=4, chunks=3, every=3, times=2, seed=4, **options)


def binary_code(**options):
    return BinaryCodeEmbedding(IDS, DIM, rows=6, seed=5, **options)


def numbered(**options):
    table = binary_code(numbered=True, split="skip", **options)
    table.set_numbers(torch.tensor([3, 1, 4, 15, 9, 2, 6, 5, 0, 8, 7, 11]))
    return table


def hash_code(**options):
    table = HashCodeEmbedding(IDS, DIM, rows=4, **options)
    bits = torch.arange(IDS)[:, None] >> torch.arange(4) & 1
    table.set_codes(bits.bool(), weights=torch.arange(IDS) % 5)
    return table


def compositional(combine="multiply", **options):
    return CompositionalEmbedding(IDS, DIM, rows=8, combine=combine, seed=6, **options)


def added(**options):
    return compositional(combine="add", **options)


def concatenated(**options):
    return compositional(combine="concatenate", **options)


def robe(**options):
    return RobeEmbedding(IDS, DIM, rows=5, chunk=2, seed=7, **options)


def signed(**options):
    return robe(signs=True, **options)


def tensor_train(**options):
    return TensorTrainEmbedding(IDS, DIM, rows=12, seed=8, **options)


def deep_hash(**options):
    return DeepHashEmbedding(IDS, DIM, rows=30, hidden=3, hashes=9, seed=9, **options)


def posterior(dim=DIM, **options):
    table = PosteriorEmbedding(IDS, dim, rows=5, first_rows=3, **options)
    table.split(1, torch.full((dim,), 0.5, dtype=table.weight.dtype))
    table.evidence[:, :4] += (torch.arange(4 * (IDS + 1)) * 37 % 90).view(-1, 4).to(torch.uint8)
    return table


def personal(rows=posterior, **options):
    table = PersonalEmbedding(rows(**options))
    table.give(torch.tensor([3, 9]))
    with torch.no_grad():
        table.offset.copy_(torch.arange(2 * DIM).view(2, DIM))
    return table


def personal_clustered(**options):
    return personal(clustered, **options)


def prehash(k=2, **options):
    table = PreHashEmbedding(
        IDS, DIM, rows=5, k=k, tries=3, explorations=7, pull=0.1, seed=10, **options
    )
    table.bind(torch.tensor([4, 9, 0, 11, 2]))
    return table


def prehash_of_all(**options):
    return prehash(k=None, **options)


def prehash_history(**options):
    table = HistoryPreHashEmbedding(
        IDS, DIM, rows=5, k=2, length=3, partner_rows=4, hidden=6, seed=11, **options
    )
    table.bind(torch.tensor([4, 9]))
    table.remember(torch.tensor([1, 1, 8, 2, 7]), torch.tensor([5, 6, 7, 5, 3]))
    return table


def tree(root=True, share=True, dim=DIM, **options):
    table = TreeEmbedding(IDS, dim, rows=4, root=root, share=share, pull=3.0, **options)
    table.grow_tree(torch.Generator().manual_seed(0))
    return table


def leaves(**options):
    return tree(share=False, **options)


def jnkm(**options):
    return tree(root=False, **options)


def unplanted_jnkm_leaves(**options):
    return TreeEmbedding(IDS, DIM, rows=4, root=False, share=False, **options)


def quantised(rows=clustered, **options):
    return QuantisedEmbedding(rows(**options), seed=11)


def quantised_full(**options):
    return quantised(full, **options)


def quantised_adaptive(**options):
    return quantised(counting, **options)


def packed(**options):
    table = quantised(**options)
    table.pack()
    return table


def biased_mixed(**options):
    return biased(mixed, **options)


def biased_tree(**options):
    return biased(tree, **options)


# The first of a method is captured by torch.export and torch.compile too.
STATES = {
    "adaptive": [adaptive, counting],
    "biased": [biased, biased_mixed, biased_tree, biased_levelled],
    "binary-code": [numbered, binary_code],
    "cafe": [cafe],
    "cce": [cce],
    "cel": [clustered],
    "compositional": [compositional, added, concatenated],
    "deep-hash": [deep_hash],
    "four-bit": [four_bit],
    "full": [full],
    "hash-code": [hash_code],
    "levelled": [levelled, product_codes],
    "mixed": [mixed],
    "modulo": [modulo],
    "packed-levels": [packed_levels, packed_clusters, packed_product_codes],
    "personal": [personal, personal_clustered],
    "posterior": [posterior],
    "prehash": [prehash, prehash_of_all],
    "prehash-history": [prehash_history],
    "quantised": [quantised, packed, quantised_full, quantised_adaptive],
    "robe": [signed, robe],
    "tensor-train": [tensor_train],
    "tree": [tree, leaves, jnkm, unplanted_jnkm_leaves],
}
MAKERS = [make for makers in STATES.values() for make in makers]


def by_name(makers):
    return pytest.mark.parametrize("make", makers, ids=lambda make: make.__name__)


def test_every_method_is_here():
    assert {name: {type(make()) for make in makers} for name, makers in STATES.items()} == {
        name: {method} for name, method in table_classes().items()
    }


@by_name(MAKERS)
def test_all_promises_are_kept(make):
    check_embedding(
        make,
        exact_row_gradients="quantised" not in make.__name__,  # they go straight through
        capture=any(make is makers[0] for makers in STATES.values()),
    )


@by_name([tree, jnkm, biased_tree])
def test_a_tree_can_be_adapted_in_half_precision(make):
    make(dtype=torch.float16).adapt()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_ids_may_be_narrower_than_the_number_of_ids(dtype):
    ids = torch.tensor([0, 7, 100])
    for name in table_classes():
        table = large(name, ids=40_000, rows=50)
        torch.testing.assert_close(table(ids.to(dtype)), table(ids))


def anchored(table):
    """With rows for ids, as far as there are any: mixtures are shorter than rows."""
    table.bind(torch.arange(min(table.num_embeddings, len(table.weight))))
    return table


def packed_rows(ids, dim, rows):
    """A row for each id, as far as there are rows."""
    table = ClusteredEmbedding(ids, dim, max_clusters=rows)
    table.start_from(torch.arange(ids) % rows)
    return PackedLevels.of(table)


def large(name, *, ids=1000, dim=DIM, rows=1000):
    """A table of each method with that many numbers, as far as it can be asked for."""
    made = {
        "biased": lambda: BiasedEmbedding(large("modulo", ids=ids, dim=dim, rows=rows)),
        "cel": lambda: ClusteredEmbedding(ids, dim, max_clusters=rows),
        "four-bit": lambda: FourBitEmbedding(ids, dim),
        "full": lambda: FullEmbedding(ids, dim),
        "levelled": lambda: LevelledEmbedding(ids, dim, max_clusters=rows),
        "mixed": lambda: MixedEmbedding(ids, dim, shared_rows=rows // 2, private_rows=rows // 2),
        "packed-levels": lambda: packed_rows(ids, dim, rows),
        "personal": lambda: PersonalEmbedding(large("modulo", ids=ids, dim=dim, rows=rows)),
        "prehash-history": lambda: anchored(HistoryPreHashEmbedding(ids, dim, rows=rows)),
        "quantised": lambda: QuantisedEmbedding(large("modulo", ids=ids, dim=dim, rows=rows)),
    }
    return made.get(name, lambda: table_classes()[name](ids, dim, rows=rows))()


@pytest.mark.parametrize("name", table_classes())
@pytest.mark.parametrize("dim", [1, 16, 300])
def test_vectors_have_a_norm_of_about_one_whatever_the_dimension(name, dim):
    torch.manual_seed(0)
    ids = torch.arange(1000)
    squares = []
    for _ in range(10 if dim == 1 else 1):  # the fewer numbers, the more is chance
        table = large(name, dim=dim)  # with as many rows as ids: mixtures of many are shorter
        if name == "cel":
            table.start_from(ids)
        if name == "levelled":
            table.clustered_levels[0].start_from(ids)
        if name == "posterior":
            table.evidence[ids] = IMPOSSIBLE
            table.evidence[ids, ids] = 0
        squares.append(float(table(ids).detach().square().sum(1).mean()))
    assert sum(squares) / len(squares) == pytest.approx(1, abs=0.2)


@by_name([make for make in MAKERS if isinstance(make(), SharedRows)])
class TestSharedRows:
    """Tables of which each vector is exactly one row."""

    def test_vectors_are_rows_to_the_bit(self, make):
        table = make()
        rows = table.row_of(EVERYONE)
        assert rows.dtype == torch.int64
        assert rows.shape == EVERYONE.shape
        assert table(EVERYONE).tolist() == [table.weight[row].tolist() for row in rows.tolist()]

    def test_rows_get_the_sums_of_the_gradients_of_their_ids(self, make):
        table = make(padding_idx=4)
        ids = torch.tensor([[5, 5, 4], [2, -7, IDS - 1]])
        pull = torch.randn(2, 3, DIM)
        (table(ids) * pull).sum().backward()
        expected = torch.zeros_like(table.weight)
        for one, slope in zip(ids.flatten(), pull.reshape(-1, DIM), strict=True):
            if one != 4:
                expected[table.row_of(one)] += slope
        torch.testing.assert_close(table.weight.grad, expected)

    def test_any_integer_has_a_row_in_use(self, make):
        @given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
        def check(ids):
            rows = table.row_of(torch.tensor(ids, dtype=torch.int64))
            assert bool(((rows >= 0) & (rows < table.num_rows)).all())

        table = make()
        check()

    def test_rows_stay_where_they_are_in_another_float_type(self, make):
        table = make()
        before, rows = table(EVERYONE).double(), table.row_of(EVERYONE)
        table.to(torch.float64)
        assert torch.equal(table(EVERYONE), before)
        assert torch.equal(table.row_of(EVERYONE), rows)


@pytest.mark.parametrize(
    "name", [name for name in table_classes() if name not in ("biased", "personal", "quantised")]
)
@pytest.mark.parametrize("sizes", [(0, 3), (-1, 3), (3, 0)])
def test_sizes_have_to_be_positive(name, sizes):
    with pytest.raises(CelrecError, match="must be positive"):
        large(name, ids=sizes[0], dim=sizes[1], rows=1)


@pytest.mark.slow
@by_name([makers[0] for makers in STATES.values()])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, by torch
def test_machine_code_of_the_compiler_gives_the_same_vectors(make):
    table = make(padding_idx=2)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(table, fullgraph=True)(EVERYONE), table(EVERYONE))
