"""All that can be trained."""

from __future__ import annotations

from typing import TypeAlias

from celrec.training.factorisation import Factorisation
from celrec.training.recommender import Recommender

Model: TypeAlias = Factorisation | Recommender
"""Both have `tables`, `user_rows`, `item_rows` and `predict`."""
