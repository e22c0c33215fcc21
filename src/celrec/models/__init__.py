"""Vectors to a prediction: one interaction model per file; a model never sees an id."""

from celrec.runtime.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
