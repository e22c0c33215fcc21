"""What to train: plans, presets, the options of all commands, and what the data pick."""

from celrec.runtime.extras import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
