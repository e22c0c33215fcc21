"""Putting one module of a model in the place of another."""

from __future__ import annotations

from torch import nn


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever `old` is registered below `model`, in its mode."""
    new.train(old.training)
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, new)
