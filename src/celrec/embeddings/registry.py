"""The registry of embedding methods.

A method added to `METHODS` is an option of the command line, the estimator and comparisons, and
its tables can be saved in run folders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from celrec.data.interactions import Interactions
from celrec.embeddings.adaptive import AdaptiveEmbedding
from celrec.embeddings.binary_code import BinaryCodeEmbedding
from celrec.embeddings.cafe import CafeEmbedding
from celrec.embeddings.cce import CceEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.compositional import CompositionalEmbedding
from celrec.embeddings.deep_hash import DeepHashEmbedding
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.four_bit import FourBitEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hash_code import HashCodeEmbedding, hash_codes
from celrec.embeddings.hashing import ModuloEmbedding
from celrec.embeddings.packed import PackedLevels
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.embeddings.prehash import PreHashEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.embeddings.robe import RobeEmbedding
from celrec.embeddings.tensor_train import TensorTrainEmbedding
from celrec.embeddings.tree import TreeEmbedding
from celrec.errors import CelrecError


class Request(NamedTuple):
    """The data and the sizes that a table is created for."""

    log: Interactions
    """The training data."""
    side: str
    """`users`, `items` or the name of a further column."""
    ids: int
    dim: int
    rows: int
    seed: int

    @property
    def counts(self) -> Tensor:
        """The interactions of each id."""
        known = {"users": self.log.user_counts, "items": self.log.item_counts}
        known |= {name: column.counts for name, column in self.log.columns.items()}
        counts = np.zeros(self.ids, np.int64)
        counts[: len(known[self.side])] = known[self.side][: self.ids]
        return torch.from_numpy(counts)

    @property
    def warmest(self) -> Tensor:
        """All ids, those with the most interactions first."""
        return self.counts.argsort(descending=True, stable=True)


@dataclass(frozen=True, slots=True)
class Method:
    """An embedding method and how its tables are created."""

    summary: str
    """A description of a few words."""
    kind: Callable[..., Embedding]
    """The class of its tables."""
    maker: Callable[[Request], Embedding] | None = None
    """Creates a table; None: the class is called with `rows` and `seed`."""
    tree: bool = False
    """Whether factorisations with it have a separate solver."""
    composed: bool = False
    """Whether a vector is not a single row, or gradients determine the row of an id."""
    compressed: bool = True
    """Whether its size is given in rows."""
    codes: str | None = None
    """Which codes its tables take from a full fit within a budget of bytes, as in
    `CompressionConfig`; `rows` for a row of each id; None: it is not made of a full fit."""
    budget_only: bool = False
    """Whether its tables are made of a full fit within a number of bytes, and not otherwise."""
    name_in_files: str | None = None
    """The name of the class in run folders, if it is not the method's name."""

    def make(self, request: Request) -> Embedding:
        """Create a table for a log."""
        if self.maker is not None:
            return self.maker(request)
        return self.kind(request.ids, request.dim, rows=request.rows, seed=request.seed)


def _full(request: Request) -> FullEmbedding:
    return FullEmbedding(request.ids, request.dim)


def _skipping(request: Request) -> BinaryCodeEmbedding:
    return BinaryCodeEmbedding(
        request.ids, request.dim, rows=request.rows, seed=request.seed, split="skip"
    )


def _adaptive(request: Request) -> AdaptiveEmbedding:
    table = AdaptiveEmbedding(request.ids, request.dim, rows=request.rows, seed=request.seed)
    table.promote(request.warmest[: table.private_rows])
    return table


def _binary_code_of_ids(request: Request) -> BinaryCodeEmbedding:
    if request.side not in ("users", "items"):
        raise CelrecError(f"embedding 'bh-ids' is for users and items, not {request.side!r}")
    ids = (request.log.user_ids if request.side == "users" else request.log.item_ids).ids
    if not ids.dtype.is_integer():
        raise CelrecError(
            "embedding 'bh-ids' takes the bits of integer ids, and these are strings; take 'bh'"
        )
    table = BinaryCodeEmbedding(
        request.ids, request.dim, rows=request.rows, seed=request.seed, numbered=True
    )
    # The ranks of the ids, since ids may need more bits than there are.
    table.set_numbers(torch.from_numpy(ids[: request.ids].to_numpy().argsort().argsort()))
    return table


def _prehash(k: int | None) -> Callable[[Request], PreHashEmbedding]:
    def make(request: Request) -> PreHashEmbedding:
        table = PreHashEmbedding(
            request.ids, request.dim, rows=request.rows, k=k, seed=request.seed
        )
        table.bind(request.warmest)
        return table

    return make


def _hash_gnn(request: Request) -> HashCodeEmbedding:
    if request.side not in ("users", "items"):
        raise CelrecError(
            f"embedding 'hashgnn' is for users and items, not for column {request.side!r}"
        )
    table = HashCodeEmbedding(request.ids, request.dim, rows=request.rows)
    bits, table.preparation_bytes = hash_codes(
        request.log, request.side, request.rows, request.seed
    )
    table.set_codes(bits, request.counts)
    return table


def _tree(*, root: bool, share: bool) -> Callable[[Request], TreeEmbedding]:
    def make(request: Request) -> TreeEmbedding:
        return TreeEmbedding(request.ids, request.dim, rows=request.rows, root=root, share=share)

    return make


def _of_full_fit(summary: str) -> Method:
    return Method(
        summary,
        PackedLevels,
        _full,
        codes="weighted-k-means",
        budget_only=True,
        name_in_files="packed-levels",
    )


METHODS: dict[str, Method] = {
    # Its clusters come from the plan, so `config.building` creates its tables.
    "cel": Method(
        "rows shared in clusters that split and re-form", ClusteredEmbedding, _full, codes="joint"
    ),
    "cel-int8": Method(
        "the same, in rows of eight bits", QuantisedEmbedding, _full, name_in_files="quantised"
    ),
    "cel-lite": Method(
        "the same, learned online, mixtures of rows for ids with few events",
        PosteriorEmbedding,
        _full,
        name_in_files="posterior",
    ),
    "full": Method("one row per id", FullEmbedding, _full, compressed=False, codes="rows"),
    "int8": Method(
        "one row of eight bits per id",
        QuantisedEmbedding,
        lambda request: QuantisedEmbedding(_full(request), seed=request.seed),
        compressed=False,
        codes="rows",
        name_in_files="quantised",
    ),
    "int4": Method(
        "one row of four bits per id, of a full fit",
        FourBitEmbedding,
        _full,
        compressed=False,
        codes="rows",
        budget_only=True,
        name_in_files="four-bit",
    ),
    "kmeans": _of_full_fit("rows shared by k-means of a full fit"),
    "rq": _of_full_fit("sums of rows by residual k-means of a full fit: RQ"),
    "pq": _of_full_fit("rows of parts by k-means of a full fit: product quantisation, PQ"),
    "modulo": Method("rows shared by hash: the hashing trick", ModuloEmbedding),
    "bh": Method(
        "sums of rows selected by the bits of a hash: binary codes",
        BinaryCodeEmbedding,
        composed=True,
        name_in_files="binary-code",
    ),
    "bh-skip": Method(
        "the same, bits distributed round-robin",
        BinaryCodeEmbedding,
        _skipping,
        composed=True,
        name_in_files="binary-code",
    ),
    "bh-ids": Method(
        "the same, bits of the rank of an integer id",
        BinaryCodeEmbedding,
        _binary_code_of_ids,
        composed=True,
        name_in_files="binary-code",
    ),
    "ae": Method(
        "private rows for frequent ids, hashed rows for others: AdaptEmb",
        AdaptiveEmbedding,
        _adaptive,
        name_in_files="adaptive",
    ),
    "hashgnn": Method(
        "rows shared by codes of a graph neural network: HashGNN",
        HashCodeEmbedding,
        _hash_gnn,
        name_in_files="hash-code",
    ),
    "prehash4": Method(
        "mixtures of 4 rows: PreHash",
        PreHashEmbedding,
        _prehash(4),
        composed=True,
        name_in_files="prehash",
    ),
    "prehash": Method(
        "mixtures of all rows: PreHash", PreHashEmbedding, _prehash(None), composed=True
    ),
    "etree": Method(
        "centres of a tree-regularised full table: eTree",
        TreeEmbedding,
        _tree(root=True, share=True),
        tree=True,
        name_in_files="tree",
    ),
    "etree-leaves": Method(
        "that full table",
        TreeEmbedding,
        _tree(root=True, share=False),
        tree=True,
        name_in_files="tree",
    ),
    "jnkm": Method(
        "centres of a full table with k-means regularisation: JNKM",
        TreeEmbedding,
        _tree(root=False, share=True),
        tree=True,
        name_in_files="tree",
    ),
    "jnkm-leaves": Method(
        "that full table",
        TreeEmbedding,
        _tree(root=False, share=False),
        tree=True,
        name_in_files="tree",
    ),
    "qr": Method(
        "products of rows, by quotient and remainder: QR",
        CompositionalEmbedding,
        composed=True,
        name_in_files="compositional",
    ),
    "cce": Method(
        "sums of a cluster's row and a hashed one, by column: CCE", CceEmbedding, composed=True
    ),
    "robe": Method("slices of one array: ROBE", RobeEmbedding, composed=True),
    "tt": Method(
        "products of small matrices: TT-Rec",
        TensorTrainEmbedding,
        composed=True,
        name_in_files="tensor-train",
    ),
    "dhe": Method(
        "a network on hashes: DHE", DeepHashEmbedding, composed=True, name_in_files="deep-hash"
    ),
    "cafe": Method("private rows for ids with large gradients: CAFE", CafeEmbedding, composed=True),
}


def find_method(name: str) -> Method:
    """The method with a name; `prehash16` mixes 16 rows, and so on.

    >>> find_method("prehash16").summary
    'mixtures of 16 rows'
    """
    if name in METHODS:
        return METHODS[name]
    k = name.removeprefix("prehash")
    if k != name and k.isdecimal() and int(k) > 0:
        summary = f"mixtures of {int(k)} rows"
        return Method(summary, PreHashEmbedding, _prehash(int(k)), composed=True)
    raise CelrecError(f"embedding must be one of {', '.join(METHODS)}, not {name!r}")
