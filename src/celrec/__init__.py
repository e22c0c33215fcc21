"""Clustered Embedding Learning (CEL, WWW'23): embedding tables that ids share in clusters.

The names below are loaded when they are first used, so that importing celrec
and asking its command for help stay quick.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celrec.cel.clusterer import Clusterer as Clusterer
    from celrec.cel.clusterize import clusterize as clusterize
    from celrec.cel.declusterize import declusterize as declusterize
    from celrec.config.plan import Plan as Plan
    from celrec.data.datasets.library import load_dataset as load_dataset
    from celrec.data.description import Description as Description
    from celrec.data.histories import Histories as Histories
    from celrec.data.id_map import UNSEEN as UNSEEN
    from celrec.data.id_map import IdMap as IdMap
    from celrec.data.interactions import Interactions as Interactions
    from celrec.data.planted import Planted as Planted
    from celrec.data.reading import read as read
    from celrec.data.split import Split as Split
    from celrec.embeddings.clustered import ClusteredEmbedding as ClusteredEmbedding
    from celrec.embeddings.clustered_bag import ClusteredEmbeddingBag as ClusteredEmbeddingBag
    from celrec.errors import CelrecError as CelrecError
    from celrec.estimator.recommender import Recommender as Recommender
    from celrec.offline.fit import fit as fit
    from celrec.recommender.bias_model import BiasModel as BiasModel
    from celrec.runs.online_run import OnlineRun as OnlineRun

__version__ = version("celrec")

_HOMES = {
    "BiasModel": "celrec.recommender.bias_model",
    "CelrecError": "celrec.errors",
    "ClusteredEmbedding": "celrec.embeddings.clustered",
    "ClusteredEmbeddingBag": "celrec.embeddings.clustered_bag",
    "Clusterer": "celrec.cel.clusterer",
    "Description": "celrec.data.description",
    "Histories": "celrec.data.histories",
    "IdMap": "celrec.data.id_map",
    "Interactions": "celrec.data.interactions",
    "OnlineRun": "celrec.runs.online_run",
    "Plan": "celrec.config.plan",
    "Planted": "celrec.data.planted",
    "Recommender": "celrec.estimator.recommender",
    "Split": "celrec.data.split",
    "UNSEEN": "celrec.data.id_map",
    "clusterize": "celrec.cel.clusterize",
    "declusterize": "celrec.cel.declusterize",
    "fit": "celrec.offline.fit",
    "load_dataset": "celrec.data.datasets.library",
    "read": "celrec.data.reading",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'celrec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
