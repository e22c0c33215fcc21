"""How well a stream is predicted, each event before it is learned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celrec.errors import CelrecError
from celrec.evaluation.metrics import area_under_curve
from celrec.online.trainer import Learned

SLICES = ("all", "cold", "warm")
_SURE = 1e-7  # a prediction is taken to be no surer than this, so that no loss is infinite


class Measured(NamedTuple):
    """The errors of predictions; None where there are no events."""

    events: int
    mse: float | None
    log_loss: float | None
    """Where all targets are 0 or 1 and all predictions lie between."""
    auc: float | None
    """Where all targets are 0 or 1, and there are both."""


class Window(NamedTuple):
    """A part of a stream."""

    end: int
    """The number of the last event in it, from 1."""
    measured: dict[str, Measured]
    """By slice: `all`, `cold` and `warm`."""


class Prequential:
    """Metrics of predictions before learning, by window and overall.

    An event is cold if its user or item had at most `cold` events before its batch. The overall AUC
    is the mean over windows, weighted by events: scores are compared within a window only, and
    only sums are stored.

    >>> learned = Learned(np.array([0.9, 0.2, 0.6], np.float32), np.array([1, 0, 0], np.float32),
    ...                   user_events=np.array([0, 9, 9]), item_events=np.array([9, 9, 9]))
    >>> metrics = Prequential(window=3)
    >>> [window] = metrics.add(learned)
    >>> window.end, window.measured["all"].auc, window.measured["cold"].events
    (3, 1.0, 1)
    >>> round(metrics.overall()["warm"].mse, 3)
    0.2
    """

    def __init__(self, window: int = 10_000, cold: int = 5) -> None:
        if window < 1:
            raise CelrecError(f"window must be at least 1 event, not {window}")
        if cold < 0:
            raise CelrecError(f"cold must not be negative, not {cold}")
        self.window, self.cold = window, cold
        self._closed = 0
        self._sums = {name: _Sums() for name in SLICES}
        self._open = _Events.none()

    def add(self, learned: Learned) -> list[Window]:
        """Take notice of a batch; the windows that are full by now."""
        cold = np.minimum(learned.user_events, learned.item_events) <= self.cold
        self._open = self._open.with_more(learned.predictions, learned.targets, cold)
        full = []
        while len(self._open.target) >= self.window:
            sums = self._open.part(0, self.window).sums()
            self._open = self._open.part(self.window, len(self._open.target))
            self._closed += self.window
            self._sums = {name: self._sums[name].plus(sums[name]) for name in SLICES}
            full.append(Window(self._closed, {name: sums[name].measured() for name in SLICES}))
        return full

    @property
    def events(self) -> int:
        """How many were measured."""
        return self._closed + len(self._open.target)

    def overall(self) -> dict[str, Measured]:
        """Of all events so far, by slice; the last window may not be full."""
        last = self._open.sums()
        return {name: self._sums[name].plus(last[name]).measured() for name in SLICES}

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on."""
        return {
            "window": self.window,
            "cold": self.cold,
            "closed": self._closed,
            "sums": {name: sums.as_tuple() for name, sums in self._sums.items()},
            "open": {name: torch.from_numpy(getattr(self._open, name)) for name in _Events._fields},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        self.window, self.cold = int(state["window"]), int(state["cold"])
        self._closed = int(state["closed"])
        self._sums = {name: _Sums(*state["sums"][name]) for name in SLICES}
        kept: dict[str, Tensor] = state["open"]
        self._open = _Events(*(kept[name].numpy() for name in _Events._fields))


@dataclass(frozen=True, slots=True)
class _Sums:
    events: int = 0
    squares: float = 0.0
    log_losses: float = 0.0
    """NaN as soon as they mean nothing."""
    areas: float = 0.0
    """AUC times events; NaN as soon as a target is neither 0 nor 1."""
    ranked: int = 0
    """The events of windows that have an AUC."""

    def plus(self, other: _Sums) -> _Sums:
        return _Sums(
            self.events + other.events,
            self.squares + other.squares,
            self.log_losses + other.log_losses,
            self.areas + other.areas,
            self.ranked + other.ranked,
        )

    def as_tuple(self) -> tuple[int, float, float, float, int]:
        return self.events, self.squares, self.log_losses, self.areas, self.ranked

    def measured(self) -> Measured:
        def mean(total: float, count: int) -> float | None:
            return total / count if count and math.isfinite(total) else None

        return Measured(
            self.events,
            mean(self.squares, self.events),
            mean(self.log_losses, self.events),
            mean(self.areas, self.ranked),
        )


class _Events(NamedTuple):
    """Some events in their order."""

    prediction: NDArray[np.float64]
    target: NDArray[np.float64]
    cold: NDArray[np.bool_]

    @classmethod
    def none(cls) -> _Events:
        return cls(np.empty(0), np.empty(0), np.empty(0, bool))

    def with_more(
        self,
        prediction: NDArray[np.float32],
        target: NDArray[np.float32],
        cold: NDArray[np.bool_],
    ) -> _Events:
        return _Events(
            np.concatenate([self.prediction, prediction]),
            np.concatenate([self.target, target]),
            np.concatenate([self.cold, cold]),
        )

    def part(self, start: int, end: int) -> _Events:
        return _Events(self.prediction[start:end], self.target[start:end], self.cold[start:end])

    def sums(self) -> dict[str, _Sums]:
        """By slice."""
        everything = np.ones(len(self.target), bool)
        rows = zip(SLICES, (everything, self.cold, ~self.cold), strict=True)
        return {name: _sums_of(self.prediction[part], self.target[part]) for name, part in rows}


def _sums_of(prediction: NDArray[np.float64], target: NDArray[np.float64]) -> _Sums:
    squares = float(np.square(prediction - target).sum())
    if not np.isin(target, (0, 1)).all():
        return _Sums(len(target), squares, math.nan, math.nan)
    losses = math.nan
    if ((prediction >= 0) & (prediction <= 1)).all():
        right = np.where(target == 1, prediction, 1 - prediction)
        losses = float(-np.log(np.maximum(right, _SURE)).sum())
    if len(np.unique(target)) < 2:
        return _Sums(len(target), squares, losses)
    area = len(target) * area_under_curve(prediction, target)
    return _Sums(len(target), squares, losses, area, len(target))
