import pytest

from celrec import CelrecError
from celrec.evaluation.cell_file import CellFile
from reproduce.planted_recovery import PlantedRecovery
from reproduce.results_page import filled

PAGE = "Before.\n<!-- claims-planted -->\nold\n\n| old |\n<!-- end -->\nAfter <!-- nothing -->.\n"


@pytest.fixture
def folder(tmp_path):
    known = CellFile(tmp_path / "claims-planted.jsonl")
    for cell in PlantedRecovery().cells(known, quick=False)[:-1]:
        known.keep(cell, {"agreement": 0.5, "equal": 3, "unexplained": 0.25})
    return tmp_path


def test_tables_take_the_place_of_what_stood_there(folder):
    page = filled(PAGE, folder)
    head, _, rest = page.partition("<!-- claims-planted -->\n")
    assert head == "Before.\n"
    table, _, tail = rest.partition("<!-- end -->")
    assert tail == "\nAfter <!-- nothing -->.\n"
    lines = table.splitlines()
    assert lines[0] == "Not finished: 1 cells are missing."
    assert lines[2].startswith("12 planted clusters")
    assert "0.500 ± 0.000" in lines[6]
    assert "old" not in table


def test_a_page_that_is_filled_stays_as_it_is(folder):
    page = filled(PAGE, folder)
    assert filled(page, folder) == page


def test_a_table_that_there_is_not_is_told(folder):
    with pytest.raises(CelrecError, match="claims-planted has 1 tables; there is no table 2"):
        filled(PAGE.replace("planted -->", "planted 2 -->"), folder)
