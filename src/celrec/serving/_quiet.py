"""Others that talk while a graph is made."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_TALKATIVE = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


@contextmanager
def quiet() -> Iterator[None]:
    """Within it, torch and ONNX tell of errors only: the rest is about code of their own."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
