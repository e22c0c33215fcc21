"""From a plan and a split log to a trained recommender."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from celrec.data.interactions import Interactions
from celrec.data.split import Split
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.embeddings.full import FullEmbedding
from celrec.embeddings.modulo import ModuloEmbedding
from celrec.embeddings.shared_rows import SharedRows
from celrec.errors import CelrecError
from celrec.training.denormals import flushed_denormals
from celrec.training.factorisation import Factorisation
from celrec.training.offline import Judgement, Watcher, refit_offline, train_offline
from celrec.training.presets import PRESETS

_COMPRESSED: dict[str, Callable[[int, int, int, int], SharedRows]] = {
    "cel": lambda ids, dim, rows, _: ClusteredEmbedding(ids, dim, max_clusters=rows),
    "modulo": lambda ids, dim, rows, seed: ModuloEmbedding(ids, dim, rows=rows, seed=seed),
}
EMBEDDINGS = (*_COMPRESSED, "full")
SIDES = {"items": (False, True), "users": (True, False), "both": (True, True)}


@dataclass(frozen=True, slots=True)
class Plan:
    """What to train."""

    embedding: str = "cel"
    compression: str = "1%"
    """Rows of each compressed table: a share of its ids (`1%`), or a number (`40`)."""
    side: str = "items"
    """Which tables are compressed: `items`, `users` or `both`."""
    rank: int = 64
    preset: str = "default"
    seed: int = 0

    def __post_init__(self) -> None:
        choices = {"embedding": EMBEDDINGS, "side": tuple(SIDES), "preset": tuple(PRESETS)}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise CelrecError(
                    f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}"
                )
        self.rows(1000)  # complains about a compression that cannot be read

    def rows(self, ids: int) -> int:
        """How many rows a compressed table of so many ids gets.

        >>> Plan(compression="1%").rows(3706), Plan(compression="40").rows(3706)
        (37, 40)
        """
        text = self.compression.strip()
        try:
            share = text.endswith("%")
            rows = round(float(text[:-1]) / 100 * ids) if share else int(text)
        except ValueError as error:
            raise CelrecError(
                f"compression must be a share such as '1%' or a number of rows, not {text!r}"
            ) from error
        if rows < 0:
            raise CelrecError(f"compression must not be negative, not {text!r}")
        return min(max(rows, 1), ids)


@dataclass(frozen=True, slots=True)
class Fit:
    """A trained recommender and how it came about."""

    model: Factorisation
    judgements: list[Judgement]
    steps: int
    """How many steps validation data chose."""


def fit(split: Split, plan: Plan, watch: Watcher | None = None) -> Fit:
    """Train on the training part, choose the number of steps on the validation part, then train
    anew on both for that many steps.
    """
    how = replace(PRESETS[plan.preset], seed=plan.seed)
    with flushed_denormals():
        judgements = train_offline(
            make_model(split.train, plan), split.train, split.valid, how, watch
        )
        best = min(judgements, key=lambda judgement: judgement.valid_loss)
        model = make_model(split.train, plan)
        refit_offline(model, split.train_and_valid(), how, best.step)
    return Fit(model, judgements, best.step)


def make_model(log: Interactions, plan: Plan) -> Factorisation:
    """Untrained tables of the sizes that the plan asks for."""
    tables = []
    for compressed, ids in zip(SIDES[plan.side], (log.num_users, log.num_items), strict=True):
        if compressed and plan.embedding != "full":
            make = _COMPRESSED[plan.embedding]
            tables.append(make(ids, plan.rank, plan.rows(ids), plan.seed))
        else:
            tables.append(FullEmbedding(ids, plan.rank))
    return Factorisation(*tables)
