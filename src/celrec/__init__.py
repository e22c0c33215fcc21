"""Clustered Embedding Learning (CEL, WWW'23): embedding tables that ids share in clusters.

The names below are loaded when they are first used, so that importing celrec
and asking its command for help stay quick.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celrec.data.id_map import UNSEEN as UNSEEN
    from celrec.data.id_map import IdMap as IdMap
    from celrec.data.interactions import Interactions as Interactions
    from celrec.data.reading import read as read

__version__ = version("celrec")

_HOMES = {
    "UNSEEN": "celrec.data.id_map",
    "IdMap": "celrec.data.id_map",
    "Interactions": "celrec.data.interactions",
    "read": "celrec.data.reading",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'celrec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
