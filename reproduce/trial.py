"""One cell of most experiments: a method on one part of a log."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import lru_cache, reduce
from typing import Any

from celrec.config.offline import OfflineConfig, Schedule
from celrec.config.plan import Plan
from celrec.data.datasets.library import load_dataset
from celrec.data.interactions import Interactions
from celrec.data.split import Split, dense, sparse
from celrec.errors import CelrecError, DivergedError
from celrec.evaluation.comparison import outcome
from celrec.offline.fitting import Fit, fit, validate

VARIANTS: dict[str, Callable[[Interactions], Interactions]] = {
    "original": lambda log: log,
    "dense": dense,
    "sparse": sparse,
}
FOLDS = 5
_QUICK = 8  # how many times fewer steps there are when it is to be quick
_FEWEST = 4  # where there are few already, as in passes over a stream, one would tell nothing


@dataclass(frozen=True, slots=True)
class Trial:
    """A plan, the data it is for, and settings that the plan has no name for.

    `change` has dotted names: `{"schedule.split_every": 0}`. What is quick takes fewer steps.

    >>> trial = Trial("ml-100k", Plan(embedding="modulo"), change={"schedule.steps": 10})
    >>> Trial.of(trial.cell()) == trial
    True
    >>> trial.changed(OfflineConfig()).schedule.steps
    10
    """

    data: str
    plan: Plan
    fold: int = 1
    """Of five."""
    variant: str = "original"
    """See `VARIANTS`."""
    change: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False
    validated: bool = False
    """Whether it is judged on validation data only, to choose settings."""

    def cell(self) -> dict[str, Any]:
        """All of it, as JSON; of the plan and the changes only what is not as ever.

        So what is trained in the same way is the same cell, whatever it is told.
        """
        plain = Plan(model=self.plan.model, embedding=self.plan.embedding)
        told = asdict(self.plan)
        usual = asdict(plain) | {"model": None, "embedding": None}
        plan = {name: value for name, value in told.items() if value != usual[name]}
        mine = {one.name: getattr(self, one.name) for one in fields(self)}
        preset = self.plan.settings()
        change = {
            name: value
            for name, value in self.change.items()
            if _with(preset, name.split("."), value) != preset
        }
        return mine | {"plan": plan, "change": change}

    @classmethod
    def of(cls, cell: Mapping[str, Any]) -> Trial:
        """What `cell` told."""
        return cls(**{**cell, "plan": Plan(**cell["plan"])})

    def changed(self, how: OfflineConfig) -> OfflineConfig:
        """Other settings of those of a preset."""
        for name, value in self.change.items():
            how = _with(how, name.split("."), value)
        if self.quick:
            how = replace(how, schedule=_shorter(how.schedule), personal=_shorter(how.personal))
        return how

    def having(self, setting: str, value: Any) -> Trial:
        """With another value of a dotted setting: `plan.penalty`, or one that `change` can name.

        >>> Trial("ml-100k", Plan()).having("schedule.steps", 10).change
        {'schedule.steps': 10}
        """
        owner, *path = setting.split(".")
        if owner == "plan":
            return replace(self, plan=_with(self.plan, path, value))
        return replace(self, change={**self.change, setting: value})

    def value_of(self, setting: str) -> Any:
        """What a dotted setting comes to."""
        if setting.startswith("plan."):
            return getattr(self.plan, setting.removeprefix("plan."))
        return reduce(getattr, setting.split("."), self.changed(self.plan.settings()))

    def split(self) -> Split:
        """The data in their parts."""
        log = self.plan.prepared(load_log(self.data, self.variant))
        return Split.fold(log, self.fold, of=FOLDS, seed=self.plan.seed)

    def run(
        self, more: Callable[[Fit, Split], dict[str, Any]] = lambda _, __: {}
    ) -> dict[str, Any]:
        """What it comes to: see `outcome`; `more` looks at what was trained.

        Of one that is for validation only, `valid`. Where training diverged, that is None, and
        `diverged` says how.
        """
        split = self.split()
        try:
            if self.validated:
                loss = validate(split, self.plan, change=self.changed)
                return {"valid": loss if math.isfinite(loss) else None}
            begun = time.process_time()  # other cells run beside this one
            fitted = fit(split, self.plan, change=self.changed)
        except DivergedError as error:
            return {"valid": None, "diverged": str(error)}
        seconds = time.process_time() - begun
        return {**outcome(fitted, split, self.plan, seconds), **more(fitted, split)}


def serves(cell: Mapping[str, Any], found: Mapping[str, Any], more: Iterable[str] = ()) -> bool:
    """Whether `found` is what a trial comes to, and has what was looked at besides, by name.

    >>> cell = Trial("ml-100k", Plan()).cell()
    >>> serves(cell, {"valid": 0.7, "test": {}}), serves(cell, {"valid": 0.7, "test": {}}, ["x"])
    (True, False)
    """
    if "valid" not in found:
        return False
    return bool(cell["validated"]) or "diverged" in found or {"test", *more} <= found.keys()


def _shorter(schedule: Schedule) -> Schedule:
    steps = max(schedule.steps // _QUICK, min(schedule.steps, _FEWEST))
    return replace(schedule, steps=steps)


@lru_cache(maxsize=2)  # a process works on several cells of the same log
def load_log(data: str, variant: str) -> Interactions:
    """A variant of a data set."""
    return VARIANTS[variant](load_dataset(data))


def _with(settings: Any, path: list[str], value: Any) -> Any:
    """Nested settings with one value replaced."""
    name, *rest = path
    if not is_dataclass(settings) or not hasattr(settings, name):
        raise CelrecError(f"{type(settings).__name__} has no setting {name!r} to change")
    if rest:
        value = _with(getattr(settings, name), rest, value)
    return replace(settings, **{name: value})  # type: ignore[type-var]
