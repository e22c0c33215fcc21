"""Checkpoints of offline training, so that it can be interrupted and resumed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from celrec.errors import CelrecError, first_line
from celrec.offline.solver import ValidationRecord, Watcher
from celrec.offline.training import OfflineTraining
from celrec.runtime.state_file import load_state, save_state


class Checkpoint:
    """Saves the state of training to a file, from which interrupted training resumes.

    Training has stages, each an `OfflineTraining` of its own. The file has the final states of
    finished stages, and that of the current one after a validation, written at most once in
    `every` seconds. Without a path nothing is saved.
    """

    def __init__(
        self,
        path: Path | None = None,
        about: dict[str, Any] | None = None,
        *,
        resume: bool = False,
        every: float = 20.0,
        writing: bool = True,
    ) -> None:
        """`about` describes what is trained; the file to `resume` from must have the same.

        Of several ranks, one is to be `writing`.
        """
        self.path, self._about, self._every, self._writing = path, about or {}, every, writing
        self._stages: dict[str, Any] = {}
        self._saved = time.monotonic()
        if resume and path is not None and path.exists():
            state = load_state(path)
            if not {"about", "stages"} <= set(state):
                raise CelrecError(f"{path}: holds no checkpoint; train anew without --resume")
            for name, value in self._about.items():
                if (other := state["about"].get(name)) != value:
                    raise CelrecError(
                        f"{path}: was written with {name} {other!r}, not {value!r}; "
                        "give the same arguments, or train anew without --resume"
                    )
            self._stages = state["stages"]

    @property
    def begun(self) -> bool:
        """Whether there is a state to resume from."""
        return bool(self._stages)

    def run(
        self, stage: str, training: OfflineTraining, watch: Watcher, *, fresh: bool = True
    ) -> ValidationRecord:
        """Run a stage to its end, resumed if it was begun; return its best validation record.

        A `fresh` stage initialises the model first; others train it from where it is.
        """
        if stage in self._stages:
            try:
                training.load_state_dict(self._stages[stage])
            except (LookupError, TypeError, ValueError, RuntimeError) as error:
                raise CelrecError(
                    f"{self.path}: does not fit what is trained ({first_line(error)}); "
                    "train anew without --resume"
                ) from error
        elif fresh:
            training.start()

        def save() -> None:
            if time.monotonic() - self._saved >= self._every:
                self._save(stage, training)

        training.run(lambda record: watch(stage, record), save)
        self._save(stage, training)
        return training.best

    def remove(self) -> None:
        """Delete the file, once the trained model is saved elsewhere."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _save(self, stage: str, training: OfflineTraining) -> None:
        if self.path is None or not self._writing:
            return
        stages = {**self._stages, stage: training.state_dict()}
        save_state(self.path, {"about": self._about, "stages": stages})
        self._stages = stages
        self._saved = time.monotonic()
