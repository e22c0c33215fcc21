"""Run folders, checkpoints, snapshots."""

from celrec.runtime.extras import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
