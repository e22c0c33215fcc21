import pytest

from celrec.reporting import contents as reference
from tests.reporting.written import written


def test_a_full_embedding_is_trained_once_and_kept(copied, monkeypatch):
    folder = copied("cel")
    first = written(folder).path.read_bytes()

    def trained_again(*_):
        raise AssertionError

    monkeypatch.setattr(reference, "fit", trained_again)
    assert written(folder).path.read_bytes() == first
    assert written(folder, reference=False).comparison.kind("full") is None


@pytest.mark.parametrize("damage", ["{", "[]", '{"about": {}, "figures": {}}'])
def test_a_damaged_reference_is_made_anew(copied, damage):
    folder = copied("one")
    first = written(folder).path.read_bytes()
    (folder / "reference.json").write_text(damage)
    assert written(folder).path.read_bytes() == first


def test_a_full_run_needs_no_reference(copied):
    folder = copied("full")
    assert written(folder).comparison.no_reference == "this run is a full embedding itself"
    assert not (folder / "reference.json").exists()


@pytest.mark.parametrize("kind", ["soft", "auto", "warm", "ranking"])
def test_every_kind_of_run_can_have_a_reference(copied, kind):
    report = written(copied(kind))
    assert report.comparison.kind("full") is not None
