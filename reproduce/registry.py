"""All experiments by name."""

from __future__ import annotations

from importlib import import_module

from celrec.errors import CelrecError
from reproduce.experiment import Experiment

NAMES = (
    *("table2-nmf", "table2-din", "table3", "table3-planted", "table4"),
    *("table5", "table6", "table7", "table8", "table9", "table10", "table11", "table12", "table13"),
    "table14",
    *("levels-ml-1m", "levels-ml-100k"),
    *("figure3", "figure4", "figure5", "figure6", "figure7"),
    *("claims-starts", "claims-full", "claims-inside", "claims-lite", "claims-planted"),
    "claims-time",
)
"""In the order of the paper, and then claims that it has no table for."""


def find_experiment(name: str) -> Experiment:
    """The experiment of this name.

    >>> find_experiment("table2-nmf").title
    'Table 2: MovieLens-1m, NMF, test MSE'
    """
    if name not in NAMES:
        raise CelrecError(f"no experiment is called {name!r}; take one of {', '.join(NAMES)}, all")
    module = import_module(f"reproduce.{name.partition('-')[0]}")
    experiments: dict[str, Experiment] = module.EXPERIMENTS
    return experiments[name]
