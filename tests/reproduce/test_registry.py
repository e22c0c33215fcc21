import json
import pickle

import pytest

from celrec import CelrecError
from celrec.evaluation.cell_file import CellFile
from reproduce.registry import NAMES, find_experiment


@pytest.mark.parametrize("name", NAMES)
def test_a_name_leads_to_its_experiment_which_can_be_sent_to_a_process(name):
    experiment = find_experiment(name)
    assert experiment.name == name
    assert experiment.title
    again = pickle.loads(pickle.dumps(experiment))  # noqa: S301
    assert again.cells(CellFile(None), quick=True) == experiment.cells(CellFile(None), quick=True)


@pytest.mark.usefixtures("all_data_are_small")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quick", [False, True])
def test_cells_are_distinct_and_json(name, quick):
    experiment, known = find_experiment(name), CellFile(None)
    cells = experiment.cells(known, quick=quick)
    texts = [json.dumps(cell, sort_keys=True) for cell in cells]
    assert len(set(texts)) == len(texts)
    assert [json.loads(text) for text in texts] == list(cells)


def test_another_name_is_told():
    with pytest.raises(CelrecError, match="no experiment is called 'table1'; take one of table2"):
        find_experiment("table1")
