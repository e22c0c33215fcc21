"""A long training that can be stopped at any moment."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from celrec.errors import CelrecError
from celrec.offline.solver import ValidationRecord, Watcher
from celrec.offline.training import OfflineTraining
from celrec.runtime.state_file import load_state, save_state


class Checkpoint:
    """Keeps the state of training in a file, so that stopped training can go on.

    Training has stages, each an `OfflineTraining` of its own. The file holds what the
    finished ones came to, and the state of the present one as of its last judgement
    that is `every` seconds old or more. Without a path nothing is kept.
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
        """`about` says what is trained; the file to `resume` from must say the same.

        Of several processes that train together, one is to be `writing`.
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
        """Whether there is a state to go on from."""
        return bool(self._stages)

    def run(
        self, stage: str, training: OfflineTraining, watch: Watcher, *, fresh: bool = True
    ) -> ValidationRecord:
        """Run one stage to its end, from where it was, if it was begun; gives the best judgement.

        A `fresh` one begins with new rows, another one with those that the model has.
        """
        if stage in self._stages:
            try:
                training.load_state_dict(self._stages[stage])
            except (LookupError, TypeError, ValueError, RuntimeError) as error:
                problem = str(error).partition("\n")[0]
                raise CelrecError(
                    f"{self.path}: does not fit what is trained ({problem}); "
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
        """To be called when what was trained is safe elsewhere."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _save(self, stage: str, training: OfflineTraining) -> None:
        if self.path is None or not self._writing:
            return
        stages = {**self._stages, stage: training.state_dict()}
        save_state(self.path, {"about": self._about, "stages": stages})
        self._stages = stages
        self._saved = time.monotonic()
