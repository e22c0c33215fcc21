"""Descriptions of tables for run folders: the name of a method and its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celrec.embeddings.embedding import Embedding
from celrec.embeddings.levelled import LevelledEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.personal import BiasedEmbedding, PersonalEmbedding
from celrec.embeddings.prehash_history import HistoryPreHashEmbedding
from celrec.embeddings.registry import METHODS
from celrec.errors import CelrecError

_OTHERS: dict[str, Callable[..., Embedding]] = {
    "biased": BiasedEmbedding,
    "levelled": LevelledEmbedding,
    "mixed": MixedEmbedding,
    "personal": PersonalEmbedding,
    "prehash-history": HistoryPreHashEmbedding,
}
"""Tables that wrap others, or that training makes of them."""


def table_classes() -> dict[str, Callable[..., Embedding]]:
    """The classes of all methods, by the names that descriptions have for them.

    >>> table_classes()["modulo"].__name__
    'ModuloEmbedding'
    """
    found = {method.name_in_files or name: method.kind for name, method in METHODS.items()}
    return dict(sorted({**found, **_OTHERS}.items()))


def describe_embedding(table: Embedding) -> dict[str, Any]:
    """The method and the constructor arguments of a table, as JSON values.

    >>> from celrec import ModuloEmbedding
    >>> describe_embedding(ModuloEmbedding(100, 8, rows=10))["method"]
    'modulo'
    """
    names: dict[object, str] = {kind: name for name, kind in table_classes().items()}
    if type(table) not in names:
        raise CelrecError(
            f"table must be of a method among {', '.join(table_classes())}, "
            f"not {type(table).__name__}"
        )
    settings = {
        name: describe_embedding(value) if isinstance(value, Embedding) else value
        for name, value in table.settings().items()
    }
    return {"method": names[type(table)], **settings}


def make_embedding(description: dict[str, Any]) -> Embedding:
    """A new table from a description made by `describe_embedding`.

    >>> from celrec import ModuloEmbedding
    >>> make_embedding(describe_embedding(ModuloEmbedding(100, 8, rows=10)))
    ModuloEmbedding(100, 8)
    """
    settings = {
        name: make_embedding(value) if isinstance(value, dict) else value
        for name, value in description.items()
        if name != "method"
    }
    method = description.get("method")
    classes = table_classes()
    if method not in classes:
        raise CelrecError(f"method must be one of {', '.join(classes)}, not {method!r}")
    return classes[method](**settings)


def smallest_description(description: dict[str, Any]) -> dict[str, Any]:
    """The description with the fewest ids, for methods that resize when a state is loaded.

    So memory for all ids is allocated once, when the state is loaded.

    >>> from celrec import FullEmbedding
    >>> smallest_description(describe_embedding(FullEmbedding(100, 8)))["num_embeddings"]
    1
    """
    match description:
        case {"method": "full" | "posterior" | "four-bit" | "packed-levels", "padding_idx": None}:
            return {**description, "num_embeddings": 1}
        case {"method": "cel" | "levelled", "padding_idx": None, "max_clusters": clusters}:
            return {**description, "num_embeddings": clusters}
        case {"method": "personal", "shared": shared}:
            return {**description, "shared": smallest_description(shared), "rows": 0}
    return description
