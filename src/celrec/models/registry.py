"""The registry of interaction models: factorisations and networks."""

from __future__ import annotations

from collections.abc import Callable

from celrec.models.deepfm import DeepFM
from celrec.models.dien import DIEN
from celrec.models.din import DIN
from celrec.models.dot_product import BiasedDotProduct, DotProduct
from celrec.models.interaction import Interaction
from celrec.models.mmoe import MMoE
from celrec.models.neumf import NeuMF
from celrec.models.wide_deep import WideDeep

FACTORISATIONS: dict[str, type[Interaction]] = {"nmf": DotProduct, "mf": BiasedDotProduct}
"""Models without a network: non-negative factors; factors and biases."""
MODELS: dict[str, Callable[[int, int], Interaction]] = {
    "deepfm": DeepFM,
    "dien": DIEN,
    "din": DIN,
    "mmoe": MMoE,
    "neumf": NeuMF,
    "widedeep": WideDeep,
}
"""Networks by name, called with the dimension and the number of feature fields."""


def model_names() -> list[str]:
    """The names of all models.

    >>> model_names()[:3]
    ['nmf', 'mf', 'deepfm']
    """
    return [*FACTORISATIONS, *MODELS]


def model_class(name: str) -> type[Interaction] | Callable[[int, int], Interaction]:
    """What a registered model is made by, which has the class's traits, such as `uses_history`."""
    return FACTORISATIONS[name] if name in FACTORISATIONS else MODELS[name]


def model_summaries() -> dict[str, str]:
    """The first line of each model's docstring.

    >>> model_summaries()["nmf"]
    'y = a·b; with non-negative vectors this is NMF.'
    """
    made = {**FACTORISATIONS, **MODELS}
    return {name: (make.__doc__ or "").strip().partition("\n")[0] for name, make in made.items()}
