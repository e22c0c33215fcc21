"""What cells might come to, for tests that do not train."""

import json
from pathlib import Path

import numpy as np

from celrec.evaluation.cell_file import CellFile
from reproduce.trial import Trial

_SIZES = ("rows", "table", "index", "training", "steps", "seconds")


def finished(mse, **more):
    """What a trial comes to."""
    return {"test": {"mse": mse}, **dict.fromkeys(_SIZES, 100.0), **more}


def work(experiment, make, known=None, *, quick=False):
    """Finish all cells that `make` does not give None for, as the runner would."""
    known = known or CellFile(None)
    tried = set()
    while missing := [
        cell
        for cell in experiment.cells(known, quick=quick)
        if cell not in known and json.dumps(cell) not in tried
    ]:
        for cell in missing:
            tried.add(json.dumps(cell))
            trial = Trial.of(cell)
            found = {"valid": trial.plan.penalty} if trial.validated else make(trial)
            if found is not None:
                known.keep(cell, found)
    return known


def check_cells(experiment):
    """Cells are JSON, all different, and the quick ones say so."""
    for quick in (False, True):
        cells = experiment.cells(CellFile(None), quick=quick)
        told = [json.dumps(cell, sort_keys=True) for cell in cells]
        assert cells
        assert len(set(told)) == len(told)
        assert [json.loads(one) for one in told] == list(cells)
        trials = [Trial.of(cell) for cell in cells]
        assert all(trial.quick == quick for trial in trials)
        assert not quick or {trial.data for trial in trials} == {"ml-100k"}


def check_picture(report, folder, name):
    """The figure that a report names is there, in both forms, and not empty."""
    assert report.figures == [f"{name}.png"]
    assert sorted(path.name for path in Path(folder).iterdir()) == [f"{name}.png", f"{name}.svg"]
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / f"{name}.svg").read_text()[:1000]


def noise(*key):
    """A number that depends on the key only."""
    seed = list(json.dumps(key).encode())
    return float(np.random.default_rng(seed).normal())
