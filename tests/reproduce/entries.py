"""Looking at the entries of tables."""

from dataclasses import replace

from celrec.offline.fitting import fit


def by_place(table, *, quick=False):
    """The entries by row and column."""
    entries = table.quick if quick else table.entries
    found = {(entry.row, entry.column): entry for entry in entries}
    assert len(found) == len(entries)
    return found


def settings(entry):
    """What is trained with."""
    return entry.trial.changed(entry.trial.plan.settings())


def small(entry, **schedule):
    """Its trial with short rows, and other settings of the schedule."""
    trial = replace(entry.trial, plan=replace(entry.trial.plan, rank=4))
    for name, value in schedule.items():
        trial = trial.having(f"schedule.{name}", value)
    return trial


def validation_records(trial):
    """How training stood in the course of it."""
    return fit(trial.split(), trial.plan, change=trial.changed).validation_records["choose"]
