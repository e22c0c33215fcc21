"""Clustered Embedding Learning (CEL, WWW'23): embedding tables that ids share in clusters.

Public names are imported when they are first used, so that `import celrec` is fast.
"""

from importlib.metadata import version

from celrec.runtime.extras import lazy_exports

__version__ = version("celrec")
__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
