"""Files and tables to interactions: id maps, splits, named data sets, planted data."""

from celrec.runtime.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
