"""The plan of a model: what to train, and how."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from celrec.config.byte_budget import check_budget
from celrec.config.offline import CLUSTERS, NOTHING, ROWS, OfflineConfig
from celrec.config.online import OnlineConfig
from celrec.config.options import PLAN_OPTIONS, default, find_option
from celrec.config.presets import COMPOSED_SWEEPS, TREE, offline_presets, online_presets
from celrec.data.interactions import Interactions
from celrec.embeddings.registry import find_method
from celrec.errors import CelrecError
from celrec.models.interaction import LOSSES
from celrec.models.registry import MODELS, model_class

LITE = "cel-lite"
"""The embedding method that is always learned online."""
FULL_START = "full"
"""Where clusters start if they are compressed from a fit with a row for each id."""
WARM_START = "warm"
"""The same with rows for the warmest ids only, as many as a table has; others are folded in."""
FULL_START_BYTES = 4 << 30
"""The most memory that a full fit may take for clusters to start from it by default."""
LEAST_GAIN = 1e-4
"""The least gain, as a share of the variance of the ratings, for compression `auto`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to train, and how: the options of `Recommender`, with their defaults."""

    embedding: str = default("embedding")
    compression: str = default("compression")
    side: str = default("side")
    rank: int | None = default("rank")
    preset: str = default("preset")
    seed: int = default("seed")
    model: str = default("model")
    levels: int = default("levels")
    start: str | None = default("start")
    budget: str | None = default("budget")
    frozen: bool = default("frozen")
    personalise: str = default("personalise")
    loss: str = default("loss")
    positive: float | None = default("positive")
    negatives: int = default("negatives")
    features: bool = default("features")
    penalty: float = default("penalty")
    rate: float = default("rate")

    def __post_init__(self) -> None:
        find_method(self.embedding)
        for name in PLAN_OPTIONS:
            # Of the choices, these two have those only that go with the model and the embedding.
            some = {"preset": self._presets, "loss": self._losses}.get(name)
            find_option(name).check(getattr(self, name), choices=some)
        if self.rate != 1 and not self.online:
            raise CelrecError(
                f"rate is for what is learned online, not for embedding {self.embedding!r} with "
                f"preset {self.preset!r}; leave it out"
            )
        self.rows(1000)  # complains about a compression that cannot be read
        _ = self.personal_limit
        if self.frozen and self.auto:
            raise CelrecError(
                "compression 'auto' chooses other clusters, frozen keeps them; leave one out"
            )
        if self.conversions and self.positive is None:
            raise CelrecError(
                f"positive is missing: model {self.model!r} also learns which interactions are "
                "conversions; "
                "say from which target on (--positive 4)"
            )
        pairwise = LOSSES[self.loss].pairwise
        # Sampled items would be in histories, and have no ratings beside their conversions.
        if self.negatives and (pairwise or self._trait("uses_history") or self.conversions):
            reason = f"loss {self.loss!r}" if pairwise else f"model {self.model!r}"
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
            # Run folders of earlier versions have start "one" with every embedding.
            for name, plain in (("start", "one"), ("frozen", False), ("personalise", "none")):
                if name == "personalise" and self.embedding == LITE:
                    continue
                if getattr(self, name) not in (None, plain):
                    raise CelrecError(f"{name} is for embedding 'cel', not {self.embedding!r}")
            if self.auto:
                raise CelrecError(
                    f"compression 'auto' needs embedding 'cel', not {self.embedding!r}"
                )
        self._check_levels()
        check_budget(self)

    def _check_levels(self) -> None:
        """Complain about levels or a start from a fit where tables are not made of one."""
        if self.levels > 1 and self.embedding != "cel":
            raise CelrecError(
                f"levels are for embedding 'cel', not {self.embedding!r}; leave them out"
            )
        fitted = self.start in (FULL_START, WARM_START)
        if self.start == WARM_START and self.model != "mf":
            raise CelrecError(
                f"start 'warm' is for model 'mf', not {self.model!r}; take start 'full'"
            )
        if not fitted and self.levels == 1:
            return
        source = self.pretraining or self
        if source.online or source.full_fit is None:
            option = f"start {self.start!r}" if fitted else f"levels {self.levels}"
            raise CelrecError(
                f"{option} is compressed from a full fit, which does not go with preset "
                f"{self.preset!r}, frozen clusters, another start, compression 'auto', negatives "
                "or personalise; take preset 'default' without these"
            )

    def _presets(self) -> list[str]:
        if self.embedding == LITE:
            return [*online_presets(self.model)]
        return [*offline_presets(self.model), "online"]

    def _losses(self) -> tuple[str, ...]:
        if self.conversions or not (self.network or self.online):
            return ("squared-error",)
        if self.online:
            some = [name for name, loss in LOSSES.items() if not loss.pairwise]
            return ("squared-error",) if self.model == "nmf" else tuple(some)
        return tuple(LOSSES)

    @property
    def online(self) -> bool:
        """Whether it is learned event by event."""
        return self.embedding == LITE or self.preset == "online"

    @property
    def only_positive(self) -> bool:
        """Whether the log is implicit feedback, learned with negative sampling."""
        return LOSSES[self.loss].pairwise or self.negatives > 0

    @property
    def factorised(self) -> bool:
        """Whether a solver for factorisations trains it."""
        return not self.network and not self.online

    @property
    def clustered(self) -> bool:
        """Whether the compressed tables are CEL's."""
        return self.embedding in ("cel", "cel-int8")

    @property
    def _from_full_fit(self) -> bool:
        """Whether nothing in the plan needs clusters that learn from the data themselves.

        With negative sampling that is better too: pairs then do not count as the product of the
        interactions of user and item.
        """
        fixed = self.frozen or self.auto or self.personalise != "none" or self.negatives > 0
        return (
            (self.clustered or self.embedding == "full" or self.budget is not None)
            and self.start in (None, FULL_START, WARM_START)
            and not fixed
        )

    @property
    def tree(self) -> bool:
        """Whether the embedding is a tree with a solver of its own."""
        return find_method(self.embedding).tree

    @property
    def network(self) -> bool:
        """Whether the model is a network."""
        return self.model in MODELS

    @property
    def conversions(self) -> bool:
        """Whether the model predicts ratings and conversions."""
        return self._trait("predicts_conversions")

    def _trait(self, name: str) -> bool:
        """A trait of the model's class; a registered function has none."""
        return bool(getattr(model_class(self.model), name, False))

    @property
    def dim(self) -> int:
        """The embedding dimension."""
        return self.settings().rank if self.rank is None else self.rank

    @property
    def auto(self) -> bool:
        """Whether validation data choose the number of clusters."""
        return self.compression.strip() == "auto"

    @property
    def personal_limit(self) -> int | None:
        """Ids with more interactions get a row of their own; None: none do."""
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
        """The most rows that a compressed table of so many ids has.

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
    def full_fit(self) -> Plan | None:
        """The fit with a row for each id that the tables are compressed from, if they are."""
        how = self.settings()
        if how.compression is None:
            return None
        return replace(
            self,
            model="mf",
            embedding="full",
            preset="default",
            start=None,
            levels=1,
            budget=None,
            rank=max(self.dim, how.rank),
        )

    @property
    def pretraining(self) -> Plan | None:
        """The factorisation that a network is pretrained by, if it is."""
        source = self.settings().takes_over
        if source == NOTHING:
            return None
        preset = "least-squares" if self.levels == 1 else "default"
        factorised = replace(self, model="nmf", preset=preset, rank=None)
        if source == CLUSTERS:
            # Only the final model is personalised, and has the factor on regularisation.
            return replace(factorised, personalise="none", penalty=1.0)
        dims = MODELS[self.model](self.dim, 0).begin_as_dot_product()
        return replace(factorised, rank=dims)

    def prepared(self, log: Interactions) -> Interactions:
        """The log with the targets that the loss is for.

        With `positive`, the targets of cross-entropy are conversions; of implicit feedback, only
        conversions are kept. With `negatives`, interactions with a target of 0 are dropped, unless
        all are 0.
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
        """Complain about a log that the model or the loss cannot learn."""
        if log.columns and not self.network:
            raise CelrecError(
                f"model {self.model!r} looks at users and items only, not at column "
                f"{next(iter(log.columns))!r}; take one of {', '.join(MODELS)}"
            )
        for name, column in log.columns.items():
            if not len(column.ids):
                raise CelrecError(f"column {name!r} holds no ids at all; leave it out")
        if LOSSES[self.loss].binary and not np.isin(log.target, (0, 1)).all():
            raise CelrecError(
                f"loss {self.loss!r} is for targets 0 and 1; say from which target on an "
                "interaction is a conversion (positive, --positive 4)"
            )

    def settings(self) -> OfflineConfig:
        """The configuration: the preset with the options of the plan."""
        if self.online:
            name = self.preset if self.embedding == LITE else "default"
            how = online_presets(self.model)[name]
            how = replace(how, seed=self.seed).stronger(self.penalty)
            if isinstance(how.solver, OnlineConfig):
                solver = how.solver.faster(self.rate)
                if self.personal_limit is not None:
                    solver = replace(solver, own_above=self.personal_limit)
                how = replace(how, solver=solver)
            return how
        presets = offline_presets(self.model)
        how = presets[self.preset]
        rows = self.clustered or self.embedding in ("full", "modulo")
        # A factorisation knows no other loss, and what is not there cannot be taken over.
        there = {NOTHING: True, ROWS: rows, CLUSTERS: self.clustered}[how.takes_over]
        if how.takes_over != NOTHING and (self.loss != "squared-error" or not there):
            how = presets["scratch"]
        elif how.takes_over == ROWS and self.levels > 1:  # the rows of levels are trained
            how = presets["clusters"]
        if how.compression is not None and not self._from_full_fit:
            how = presets["least-squares"]
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
