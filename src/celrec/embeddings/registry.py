"""The registry of embedding methods, and their descriptions as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celrec.embeddings.adaptive import AdaptiveEmbedding
from celrec.embeddings.biased import BiasedEmbedding
from celrec.embeddings.binary_code import BinaryCodeEmbedding
from celrec.embeddings.cafe import CafeEmbedding
from celrec.embeddings.cce import CceEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.compositional import CompositionalEmbedding
from celrec.embeddings.deep_hash import DeepHashEmbedding
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.hash_code import HashCodeEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.modulo import ModuloEmbedding
from celrec.embeddings.personal import PersonalEmbedding
from celrec.embeddings.posterior import PosteriorEmbedding
from celrec.embeddings.prehash import PreHashEmbedding
from celrec.embeddings.prehash_history import HistoryPreHashEmbedding
from celrec.embeddings.quantised import QuantisedEmbedding
from celrec.embeddings.robe import RobeEmbedding
from celrec.embeddings.tensor_train import TensorTrainEmbedding
from celrec.embeddings.tree import TreeEmbedding
from celrec.errors import CelrecError

EMBEDDINGS: dict[str, Callable[..., Embedding]] = {
    "adaptive": AdaptiveEmbedding,
    "biased": BiasedEmbedding,
    "binary-code": BinaryCodeEmbedding,
    "cafe": CafeEmbedding,
    "cce": CceEmbedding,
    "cel": ClusteredEmbedding,
    "compositional": CompositionalEmbedding,
    "deep-hash": DeepHashEmbedding,
    "full": FullEmbedding,
    "hash-code": HashCodeEmbedding,
    "mixed": MixedEmbedding,
    "modulo": ModuloEmbedding,
    "personal": PersonalEmbedding,
    "posterior": PosteriorEmbedding,
    "prehash": PreHashEmbedding,
    "prehash-history": HistoryPreHashEmbedding,
    "quantised": QuantisedEmbedding,
    "robe": RobeEmbedding,
    "tensor-train": TensorTrainEmbedding,
    "tree": TreeEmbedding,
}
_NAMES: dict[object, str] = {method: name for name, method in EMBEDDINGS.items()}


def describe_embedding(table: Embedding) -> dict[str, Any]:
    """The method and the constructor arguments of a table, as JSON values.

    >>> describe_embedding(ModuloEmbedding(100, 8, rows=10))["method"]
    'modulo'
    """
    if type(table) not in _NAMES:
        raise CelrecError(
            f"table must be of a method among {', '.join(EMBEDDINGS)}, not {type(table).__name__}"
        )
    settings = {
        name: describe_embedding(value) if isinstance(value, Embedding) else value
        for name, value in table.settings().items()
    }
    return {"method": _NAMES[type(table)], **settings}


def make_embedding(description: dict[str, Any]) -> Embedding:
    """A new table from a description made by `describe_embedding`.

    >>> make_embedding(describe_embedding(ModuloEmbedding(100, 8, rows=10)))
    ModuloEmbedding(100, 8)
    """
    settings = {
        name: make_embedding(value) if isinstance(value, dict) else value
        for name, value in description.items()
        if name != "method"
    }
    method = description.get("method")
    if method not in EMBEDDINGS:
        raise CelrecError(f"method must be one of {', '.join(EMBEDDINGS)}, not {method!r}")
    return EMBEDDINGS[method](**settings)


def smallest_description(description: dict[str, Any]) -> dict[str, Any]:
    """The description with the fewest ids, for methods that resize when a state is loaded.

    So memory for all ids is allocated once, when the state is loaded.

    >>> smallest_description(describe_embedding(FullEmbedding(100, 8)))["num_embeddings"]
    1
    """
    match description:
        case {"method": "full" | "posterior", "padding_idx": None}:
            return {**description, "num_embeddings": 1}
        case {"method": "cel", "padding_idx": None, "max_clusters": clusters}:
            return {**description, "num_embeddings": clusters}
        case {"method": "personal", "shared": shared}:
            return {**description, "shared": smallest_description(shared), "rows": 0}
    return description
