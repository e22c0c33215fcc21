from celrec.evaluation.cell_file import CellFile
from reproduce import presence
from reproduce.presence import is_present


def test_data_are_present_if_they_are_here_or_something_is_known_of_them(monkeypatch):
    monkeypatch.setattr(presence, "find_dataset", lambda name: name if name == "ml-1m" else None)
    known = CellFile(None)
    known.keep({"data": "ml-10m", "fold": 1}, {"mse": 1.0})
    assert [is_present(name, known) for name in ("ml-1m", "ml-10m", "ml-25m")] == [
        *(True, True),
        False,
    ]
