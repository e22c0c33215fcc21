"""All embedding methods by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celrec.embeddings.biased import BiasedEmbedding
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.embedding import Embedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.mixed import MixedEmbedding
from celrec.embeddings.modulo import ModuloEmbedding
from celrec.errors import CelrecError

EMBEDDINGS: dict[str, Callable[..., Embedding]] = {
    "biased": BiasedEmbedding,
    "cel": ClusteredEmbedding,
    "full": FullEmbedding,
    "mixed": MixedEmbedding,
    "modulo": ModuloEmbedding,
}
_NAMES: dict[object, str] = {method: name for name, method in EMBEDDINGS.items()}


def describe_embedding(table: Embedding) -> dict[str, Any]:
    """The name of a table's method and its settings, ready for JSON.

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
    """A new table as `describe_embedding` tells.

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
