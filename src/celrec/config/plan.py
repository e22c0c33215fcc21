"""What to train."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from celrec.config.methods import find_method
from celrec.config.offline import CLUSTERS, NOTHING, ROWS, OfflineConfig
from celrec.config.online import OnlineConfig
from celrec.config.presets import COMPOSED_SWEEPS, ONLINE, PRESETS, TREE
from celrec.data.interactions import Interactions
from celrec.errors import CelrecError
from celrec.models.losses import LOSSES
from celrec.models.registry import MODELS

SIDES = {"items": (False, True), "users": (True, False), "both": (True, True)}
LITE = "cel-lite"
"""The embedding that is always learned online."""
_NO_NEGATIVES = ("din", "dien", "mmoe")
# Items that were drawn would be in the histories of the first two; the last has ratings to learn.
LEAST_GAIN = 1e-4
"""Of the variance of the ratings: an error that is lower by less is not better."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to train."""

    embedding: str = "cel"
    """See `METHODS`."""
    compression: str = "1%"
    """Rows of each compressed table: a share of its ids (`1%`), a number (`40`), or `auto`: as
    many clusters as lower the error on validation data."""
    side: str = "items"
    """Which tables are compressed: `items`, `users` or `both`."""
    rank: int | None = None
    """The length of a row; that of the preset if None."""
    preset: str = "default"
    seed: int = 0
    model: str = "nmf"
    """`nmf`: non-negative factors; `mf`: factors and biases; or a network: see `MODELS`."""
    start: str = "one"
    """The first clusters: see `starting_clusters`."""
    frozen: bool = False
    """Whether the first clusters are the last ones too."""
    personalise: str = "none"
    """Who gets a row of their own in the end: `none`, `all`, or those with more interactions than
    a number."""
    loss: str = "squared-error"
    """What a network is trained for: `squared-error`, `cross-entropy` of targets 0 and 1, or
    `ranking`: interactions above other items. `mmoe` has its own: squared error and
    cross-entropy of conversions."""
    positive: float | None = None
    """Targets from this one on are conversions."""
    negatives: int = 0
    """For logs that tell only what happened: beside each interaction, which counts as 1, so many
    items that the user had nothing to do with, drawn at random, are learned as 0."""
    features: bool = True
    """Whether a network sees what is known of users and items besides their ids."""
    penalty: float = 1.0
    """How many times as strong as usual the penalties on what is learned are."""
    rate: float = 1.0
    """How many times as high as usual the learning rates are, of what is learned online."""

    def __post_init__(self) -> None:
        choices = {
            "side": tuple(SIDES),
            "model": tuple(PRESETS),
            "preset": tuple(self._presets()),
            "loss": self._losses(),
        }
        find_method(self.embedding)
        for name in ("side", "model", "preset", "loss"):
            if getattr(self, name) not in choices[name]:
                raise CelrecError(
                    f"{name} must be one of {', '.join(choices[name])}, not {getattr(self, name)!r}"
                )
        if self.rank is not None and self.rank < 1:
            raise CelrecError(f"rank must be positive, not {self.rank}")
        for name in ("penalty", "rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise CelrecError(f"{name} must be positive, not {getattr(self, name)}")
        if self.rate != 1 and not self.online:
            raise CelrecError(
                f"rate is for what is learned online, not for embedding {self.embedding!r} with "
                f"preset {self.preset!r}; leave it out"
            )
        if not 0 <= self.seed < 2**63:
            raise CelrecError(f"seed must lie in 0 … 2⁶³ − 1, not {self.seed}")
        self.rows(1000)  # complains about a compression that cannot be read
        _ = self.personal_limit
        if self.frozen and self.auto:
            raise CelrecError(
                "compression 'auto' chooses other clusters, frozen keeps them; leave one out"
            )
        if self.model == "mmoe" and self.positive is None:
            raise CelrecError(
                "positive is missing: model 'mmoe' also learns which interactions are conversions; "
                "say from which target on (--positive 4)"
            )
        if self.negatives < 0:
            raise CelrecError(f"negatives must not be negative, not {self.negatives}")
        if self.negatives and (self.loss == "ranking" or self.model in _NO_NEGATIVES):
            reason = f"loss {self.loss!r}" if self.loss == "ranking" else f"model {self.model!r}"
            raise CelrecError(
                f"negatives are not for {reason}; leave them out (loss 'ranking' draws its own)"
            )
        if self.online and (self.tree or self.clustered):
            raise CelrecError(
                f"embedding {self.embedding!r} is not learned online; take {LITE!r}, or another"
            )
        if self.tree and self.model == "mf":
            raise CelrecError(f"embedding {self.embedding!r} knows no biases; take model 'nmf'")
        if self.tree and self.side != "items":
            raise CelrecError(
                f"embedding {self.embedding!r} is for side 'items', not {self.side!r}"
            )
        if not self.clustered:
            for name, plain in (("start", "one"), ("frozen", False), ("personalise", "none")):
                if name == "personalise" and self.embedding == LITE:
                    continue
                if getattr(self, name) != plain:
                    raise CelrecError(f"{name} is for embedding 'cel', not {self.embedding!r}")
            if self.auto:
                raise CelrecError(
                    f"compression 'auto' needs embedding 'cel', not {self.embedding!r}"
                )

    def _presets(self) -> Iterable[str]:
        if self.embedding == LITE:
            return ONLINE.get(self.model, ())
        return [*PRESETS.get(self.model, ()), "online"]

    def _losses(self) -> tuple[str, ...]:
        if self.model == "mmoe" or not (self.network or self.online):
            return ("squared-error",)
        if self.online:
            return ("squared-error",) if self.model == "nmf" else ("squared-error", "cross-entropy")
        return tuple(LOSSES)

    @property
    def online(self) -> bool:
        """Whether it is learned event by event."""
        return self.embedding == LITE or self.preset == "online"

    @property
    def only_positive(self) -> bool:
        """Whether the log tells only what happened, and all else is drawn at random."""
        return self.loss == "ranking" or self.negatives > 0

    @property
    def factorised(self) -> bool:
        """Whether a solver for factorisations trains it."""
        return not self.network and not self.online

    @property
    def clustered(self) -> bool:
        """Whether the compressed tables are CEL's."""
        return self.embedding in ("cel", "cel-int8")

    @property
    def tree(self) -> bool:
        """Whether leaves are learned and their tree is left."""
        return find_method(self.embedding).tree

    @property
    def network(self) -> bool:
        """Whether the model is a network."""
        return self.model in MODELS

    @property
    def dim(self) -> int:
        """The length of a row."""
        return self.settings().rank if self.rank is None else self.rank

    @property
    def auto(self) -> bool:
        """Whether validation data choose the number of clusters."""
        return self.compression.strip() == "auto"

    @property
    def personal_limit(self) -> int | None:
        """Ids with more interactions get a row of their own; None: nobody does."""
        if self.personalise == "none":
            return None
        if self.personalise == "all":
            return 0
        if not self.personalise.isdecimal():
            raise CelrecError(
                f"personalise must be none, all or a number of interactions, "
                f"not {self.personalise!r}"
            )
        return int(self.personalise)

    def rows(self, ids: int) -> int:
        """How many rows a compressed table of so many ids gets, at most.

        >>> Plan(compression="1%").rows(3706), Plan(compression="40").rows(3706)
        (37, 40)
        """
        text = self.compression.strip()
        if self.auto:
            return max(ids // 2, 1)
        try:
            number = float(text[:-1]) / 100 * ids if text.endswith("%") else int(text)
            rows = round(number)
        except (ValueError, OverflowError) as error:
            raise CelrecError(
                f"compression must be a share such as '1%', a number of rows or auto, not {text!r}"
            ) from error
        if number < 0:
            raise CelrecError(f"compression must not be negative, not {text!r}")
        return min(max(rows, 1), ids)

    @property
    def pretraining(self) -> Plan | None:
        """The factorisation that a network goes on from, if it does."""
        taken = self.settings().takes_over
        if taken == NOTHING:
            return None
        factorised = replace(self, model="nmf", preset="default", rank=None)
        if taken == CLUSTERS:
            # Rows of their own, and stronger penalties, are for what is left in the end.
            return replace(factorised, personalise="none", penalty=1.0)
        dims = MODELS[self.model](self.dim, 0).begin_as_dot_product()
        return replace(factorised, rank=dims)

    def prepared(self, log: Interactions) -> Interactions:
        """The log with the targets that the loss is for.

        With `positive`, cross-entropy has conversions for targets; where only what happened
        counts, conversions are all that did. Beside `negatives`, a target of 0 tells of something
        that did not happen, unless all are 0.
        """
        if self.positive is not None and (self.only_positive or self.loss != "squared-error"):
            converted = log.target >= self.positive
            if not converted.any():
                raise CelrecError(
                    f"positive: no target reaches {self.positive}; choose a lower one"
                )
            if self.only_positive:
                log = log[converted]
            else:
                log = replace(log, target=converted.astype(np.float32))
        if not self.negatives:
            return log
        if self.positive is None and (log.target > 0).any():
            log = log[log.target > 0]
        return replace(log, target=np.ones_like(log.target))

    def check(self, log: Interactions) -> None:
        """Complain about a log to train on that the model or the loss is not for."""
        if log.columns and not self.network:
            raise CelrecError(
                f"model {self.model!r} looks at users and items only, not at column "
                f"{next(iter(log.columns))!r}; take one of {', '.join(MODELS)}"
            )
        for name, column in log.columns.items():
            if not len(column.ids):
                raise CelrecError(f"column {name!r} holds no ids at all; leave it out")
        if self.loss == "cross-entropy" and not np.isin(log.target, (0, 1)).all():
            raise CelrecError(
                "loss 'cross-entropy' is for targets 0 and 1; say from which target on an "
                "interaction is a conversion (positive, --positive 4)"
            )

    def settings(self) -> OfflineConfig:
        """The preset, with what the plan adds to it."""
        if self.online:
            name = self.preset if self.embedding == LITE else "default"
            how = ONLINE[self.model][name]
            how = replace(how, seed=self.seed).stronger(self.penalty)
            if isinstance(how.solver, OnlineConfig):
                solver = how.solver.faster(self.rate)
                if self.personal_limit is not None:
                    solver = replace(solver, own_above=self.personal_limit)
                how = replace(how, solver=solver)
            return how
        presets = PRESETS[self.model]
        how = presets[self.preset]
        rows = self.clustered or self.embedding in ("full", "modulo")
        # A factorisation knows no other loss, and what is not there cannot be taken over.
        there = {NOTHING: True, ROWS: rows, CLUSTERS: self.clustered}[how.takes_over]
        if how.takes_over != NOTHING and (self.loss != "squared-error" or not there):
            how = presets["scratch"]
        if self.tree and not self.network:
            how = TREE
        how = replace(how, seed=self.seed).stronger(self.penalty)
        schedule = how.schedule
        if find_method(self.embedding).composed and not self.network:
            schedule = replace(schedule, steps=COMPOSED_SWEEPS)
        if self.frozen:
            schedule = replace(schedule, split_every=0, reassign_every=0)
        if self.auto:
            schedule = replace(schedule, stop_growing=True, least_gain=LEAST_GAIN)
        return replace(how, schedule=schedule)
