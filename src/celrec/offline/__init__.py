"""Fitting a log: the loop, the solvers, and where clusters start."""

from celrec.runtime.extras import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
