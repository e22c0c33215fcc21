"""All interaction models that are networks, by name."""

from __future__ import annotations

from collections.abc import Callable

from celrec.models.deepfm import DeepFM
from celrec.models.dien import DIEN
from celrec.models.din import DIN
from celrec.models.interaction import Interaction
from celrec.models.mmoe import MMoE
from celrec.models.neumf import NeuMF
from celrec.models.wide_deep import WideDeep

MODELS: dict[str, Callable[[int, int], Interaction]] = {
    "deepfm": DeepFM,
    "dien": DIEN,
    "din": DIN,
    "mmoe": MMoE,
    "neumf": NeuMF,
    "widedeep": WideDeep,
}
"""What makes a model, given the length of a row and the number of further fields."""
