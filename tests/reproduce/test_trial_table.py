from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from celrec import Plan
from celrec.evaluation.cell_file import CellFile
from reproduce import presence
from reproduce.registry import NAMES, find_experiment
from reproduce.trial import Trial
from reproduce.trial_figure import TrialFigure
from reproduce.trial_table import PENALTIES, Entry, TrialTable
from tests.reproduce.made_up import finished

CEL = Trial("ml-100k", Plan(compression="40"))
SMALL = Trial("ml-100k", Plan(compression="20"))
MODULO = Trial("ml-100k", Plan(embedding="modulo", compression="40"))
FAR = Trial("ml-10m", Plan(compression="40"))
TABLE = TrialTable(
    "a-table",
    "A table",
    [
        Entry("CEL", "1 %", CEL, 0.7858, tuned=CEL),
        Entry("CEL", "0.5 %", SMALL, 0.7926, tuned=CEL),
        Entry("Modulo", "1 %", MODULO),
        Entry("CEL", "10m", FAR, tuned=FAR),
    ],
    reference="CEL",
    notes=["A note."],
)


@pytest.fixture(autouse=True)
def no_large_log(monkeypatch):
    monkeypatch.setattr(presence, "find_dataset", lambda name: None if name == "ml-10m" else name)


def found(mse):
    names = ("rows", "table", "index", "training", "steps", "seconds")
    return {"test": {"mse": mse}, **dict.fromkeys(names, 1234.4)}


def work(known, mse, *, table=TABLE):
    """Make up what each cell comes to, as the runner would find it."""
    rounds = 0
    while missing := [c for c in table.cells(known, quick=False) if c not in known]:
        rounds += 1
        for cell in missing:
            trial = Trial.of(cell)
            if trial.validated:
                known.keep(cell, {"valid": abs(trial.plan.penalty - 2) or None})
            else:
                known.keep(cell, found(mse(trial)))
    return rounds


def test_first_it_is_chosen_then_tried_on_all_folds():
    known = CellFile(None)
    first = [Trial.of(cell) for cell in TABLE.cells(known, quick=False)]
    assert [t.plan.penalty for t in first if t.validated] == list(PENALTIES)
    assert [(t.plan.embedding, t.fold) for t in first if not t.validated] == [
        ("modulo", fold) for fold in range(1, 6)
    ]
    entry = TABLE.entries[0]
    for trial in first[:4]:
        assert entry.chosen(known) is None
        known.keep(trial.cell(), {"valid": {2.0: 0.5}.get(trial.plan.penalty, 0.6)})
    assert entry.chosen(known) == 2.0
    later = [Trial.of(cell) for cell in TABLE.cells(known, quick=False)][4:]
    assert [(t.plan.compression, t.plan.penalty, t.fold) for t in later[:4]] == [
        ("40", 2.0, 1),
        ("20", 2.0, 1),
        ("40", 1.0, 1),
        ("40", 2.0, 2),
    ]
    assert len(later) == 15


def test_what_diverged_is_not_chosen():
    known = CellFile(None)
    work(known, lambda _: 1.0)
    assert TABLE.entries[0].chosen(known) == 1.0  # 2 diverged, and 1 is the next


@pytest.mark.parametrize(
    ("best", "tried", "chosen"),
    [
        (2.0, [], 2.0),
        (4.0, [8.0], 4.0),
        (8.0, [8.0, 16.0], 8.0),
        (100.0, [8.0, 16.0], 16.0),
        (0.5, [0.25], 0.5),
        (0.0, [0.25, 0.1], 0.1),
    ],
)
def test_where_the_last_value_is_the_best_those_beyond_it_are_tried_too(best, tried, chosen):
    entry, known = (
        Entry("CEL", "1 %", CEL, tuned=CEL, further=(0.1, 0.25, 8.0, 16.0)),
        CellFile(None),
    )
    found = []
    while missing := [v for v, t in entry.choices(known).items() if t.cell() not in known]:
        assert entry.chosen(known) is None
        found += missing
        for value in missing:
            known.keep(entry.choices(known)[value].cell(), {"valid": abs(value - best)})
    assert found == [*PENALTIES, *tried]
    assert entry.chosen(known) == chosen
    table = TrialTable("a", "A", [entry])
    assert len(table.cells(known, quick=False)) == len(found) + 5
    assert (
        "as long as the last one was the best"
        in table.report(known, Path(), quick=False).markdown()
    )


def test_where_all_values_are_as_good_the_usual_one_is_taken_and_nothing_beyond_them():
    entry, known = Entry("CEL", "1 %", CEL, tuned=CEL, further=(0.1, 8.0)), CellFile(None)
    for trial in entry.choices(known).values():
        known.keep(trial.cell(), {"valid": 0.7})
    assert entry.chosen(known) == 1.0
    assert list(entry.choices(known)) == list(PENALTIES)


def test_what_is_quick_has_one_fold_and_nothing_is_chosen():
    trials = [Trial.of(cell) for cell in TABLE.cells(CellFile(None), quick=True)]
    assert all(trial.quick and not trial.validated and trial.fold == 1 for trial in trials)
    assert [trial.plan for trial in trials] == [CEL.plan, SMALL.plan, MODULO.plan]


def test_what_is_quick_may_have_entries_of_its_own(tmp_path):
    table = TrialTable("b", "B", [Entry("CEL", "1 %", CEL)], quick=[Entry("CEL", "small", SMALL)])
    assert [Trial.of(cell).plan for cell in table.cells(CellFile(None), quick=True)] == [SMALL.plan]
    plans = {Trial.of(cell).plan for cell in table.cells(CellFile(None), quick=False)}
    assert plans == {CEL.plan}
    report = table.report(CellFile(None), tmp_path, quick=True)
    assert report.tables[0].rows == [["CEL", "–"]]
    assert report.tables[0].headers == ["", "small"]
    assert report.notes == ["What is quick is of smaller data."]
    assert table.report(CellFile(None), tmp_path, quick=False).notes == []


def test_another_setting_can_be_chosen_among_other_values(tmp_path):
    descent = Trial(
        "ml-100k", Plan(compression="40", preset="paper"), change={"criterion": "members"}
    )
    rate = {"setting": "solver.learning_rate", "values": (1e-5, 1e-4, 1e-3)}
    table = TrialTable(
        "b",
        "B",
        [Entry("GD", "1 %", descent, tuned=descent, **rate), Entry("CEL", "1 %", CEL, tuned=CEL)],
    )
    known = CellFile(None)
    first = [Trial.of(cell) for cell in table.cells(known, quick=False)]
    assert [trial.value_of(rate["setting"]) for trial in first[:3]] == list(rate["values"])
    assert all(trial.change["criterion"] == "members" for trial in first[:3])
    assert all(trial.validated and trial.plan == descent.plan for trial in first[:3])
    for trial, valid in zip(first, (3.0, 1.0, None, 2.0, 1.0, 3.0, 4.0), strict=True):
        known.keep(trial.cell(), {"valid": valid})
    later = [Trial.of(cell) for cell in table.cells(known, quick=False)[7:]]
    assert later[0].value_of(rate["setting"]) == 1e-4
    assert later[1].plan.penalty == 1.0
    for trial in later:
        known.keep(trial.cell(), found(1.0))
    details = table.report(known, tmp_path, quick=False).tables[-1]
    assert list(details.headers[:5]) == ["", "", "learning rate", "penalties", "rows"]
    assert [row[:4] for row in details.rows] == [
        ["GD", "1 %", "0.0001", ""],
        ["CEL", "1 %", "", "1"],
    ]
    assert details.caption.endswith(
        "The learning rate is chosen among 1e-05, 0.0001, 0.001 where that was done. Penalties are "
        "relative to the usual ones, chosen among 0.5, 1, 2, 4 where that was done:"
    )


def test_rows_that_end_alike_are_compared_with_one_another(tmp_path):
    names = ("CEL, fast", "Modulo, fast", "CEL, slow", "Modulo, slow")
    trials = [replace(CEL, variant=name) for name in names]
    entries = [Entry(name, "1 %", trial) for name, trial in zip(names, trials, strict=True)]
    table = TrialTable("b", "B", entries, reference="CEL")
    known = CellFile(None)
    work(known, lambda trial: names.index(trial.variant) ** 2 + trial.fold, table=table)
    differences = table.report(known, tmp_path, quick=False).tables[1]
    assert differences.rows == [
        ["CEL, fast", ""],
        ["Modulo, fast", "+1.0000 ± 0.0000"],
        ["CEL, slow", ""],
        ["Modulo, slow", "+5.0000 ± 0.0000"],
    ]


def test_two_numbers_can_be_read_off_one_trial(tmp_path):
    class Doubled(TrialTable):
        def measured(self, entry, found):
            return super().measured(entry, found) * (2 if entry.row == "twice" else 1)

    table = Doubled("b", "B", [Entry(row, "1 %", MODULO) for row in ("once", "twice")])
    known = CellFile(None)
    assert len(table.cells(known, quick=False)) == 5
    work(known, lambda _: 1.5, table=table)
    values, details = table.report(known, tmp_path, quick=False).tables
    assert values.rows == [["once", "1.5000 ± 0.0000"], ["twice", "3.0000 ± 0.0000"]]
    assert [row[0] for row in details.rows] == ["once"]


def test_means_and_errors_stand_beside_the_papers_numbers(tmp_path):
    known = CellFile(None)
    noise = np.random.default_rng(0).normal(scale=0.1, size=5)

    def mse(trial):
        best = {"40": 0.7, "20": 0.8}[trial.plan.compression]
        return best + noise[trial.fold - 1] + 0.25 * (trial.plan.embedding == "modulo")

    assert work(known, mse) == 2
    report = TABLE.report(known, tmp_path, quick=False)
    assert report.missing == 0
    table, differences, details = report.tables
    spread = np.std(noise, ddof=1) / 5**0.5
    mean = 0.7 + noise.mean()
    assert list(table.headers) == ["", "1 %", "0.5 %"]
    assert table.rows[0][1] == f"{mean:.4f} ± {spread:.4f} [0.7858]"
    assert table.rows[1] == ["Modulo", f"{mean + 0.25:.4f} ± {spread:.4f}", ""]
    # The folds are the same, so what differs between them falls out.
    assert differences.rows == [["CEL", "", ""], ["Modulo", "+0.2500 ± 0.0000", ""]]
    assert details.rows[0] == ["CEL", "1 %", "1", *["1,234"] * 6]
    assert report.notes == ["A note.", "ml-10m is not here: its columns are left out."]


def test_what_is_not_finished_is_told_so(tmp_path):
    known = CellFile(None)
    trials = TABLE.trials(TABLE.entries[2], known, quick=False)
    for trial, mse in zip(trials[:2], (1.0, 2.0), strict=True):
        known.keep(trial.cell(), found(mse))
    report = TABLE.report(known, tmp_path, quick=False)
    assert report.missing == len(PENALTIES) + 3
    assert report.tables[0].rows == [
        ["CEL", "– [0.7858]", "– [0.7926]"],
        ["Modulo", "1.5000 ± 0.5000 (2 folds)", ""],
    ]


def test_what_diverged_is_told(tmp_path):
    known = CellFile(None)
    trials = TABLE.trials(TABLE.entries[2], known, quick=False)
    known.keep(trials[0].cell(), found(1.0))
    known.keep(trials[1].cell(), {"valid": None, "diverged": "it did"})
    report = TABLE.report(known, tmp_path, quick=False)
    assert report.tables[0].rows[1] == ["Modulo", "diverged (1 of 2 folds)", ""]
    assert len(report.tables[-1].rows) == 1


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("table4", "figure7")])
def test_an_experiment_of_trials_is_served_by_its_own_findings_only(name):
    experiment = find_experiment(name)
    if not isinstance(experiment, (TrialTable, TrialFigure)):
        pytest.skip("not made of trials")
    cell = Trial("ml-100k", Plan(compression="17")).cell()
    found = finished(0.8, valid=0.7)
    assert experiment.serves(cell, found) == (not experiment.more)
    assert experiment.serves(cell, found | dict.fromkeys(experiment.more))
    assert experiment.serves({**cell, "validated": True}, {"valid": 0.7})


def test_differences_are_to_the_row_of_the_same_kind(tmp_path):
    def differences(rows):
        entries = [Entry(row, "1 %", CEL.having("plan.seed", n)) for n, row in enumerate(rows)]
        table = TrialTable("c", "C", entries, reference="CEL")
        known = CellFile(None)
        for trial in map(Trial.of, table.cells(known, quick=False)):
            known.keep(trial.cell(), finished(0.5 + 0.1 * trial.plan.seed))
        return [row[1] for row in table.report(known, tmp_path, quick=False).tables[1].rows]

    kinds = ["CEL, fast", "Other, fast", "CEL, slow", "Other, slow"]
    apart = "+0.1000 ± 0.0000"
    assert differences(kinds) == ["", apart, "", apart]
    assert differences(["CEL", "CEL, personal", "Other"]) == ["", apart, "+0.2000 ± 0.0000"]
    assert differences(["CEL", "CEL, training", "Other", "Other, training"]) == [
        *("", "", "+0.2000 ± 0.0000", "+0.2000 ± 0.0000")
    ]
