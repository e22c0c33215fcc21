import json
import os
import resource
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celrec.errors import CelrecError
from celrec.streams import journal as journal_module
from celrec.streams.journal import Journal, JournalReader


def line(number, user="ann", **more):
    event = {"user": user, "item": number, "target": 1.0, "timestamp": 5, **more}
    return json.dumps(event).encode() + b"\n"


def items_of(reader, size=100):
    found = []
    while len(frame := reader.take(size).frame):
        found += frame["item"].to_list()
    return found


@pytest.fixture
def small_segments(monkeypatch):
    monkeypatch.setattr(journal_module, "SEGMENT", 200)


@given(
    groups=st.lists(st.integers(1, 5), max_size=12),
    size=st.integers(1, 7),
    segment=st.integers(50, 400),
    data=st.data(),
)
def test_what_was_appended_is_read_in_order_from_any_place_also_by_another_process(
    tmp_path_factory, groups, size, segment, data
):
    path = tmp_path_factory.mktemp("run") / "journal"
    patch = pytest.MonkeyPatch()
    patch.setattr(journal_module, "SEGMENT", segment)
    try:
        journal, count = Journal(path), 0
        for events in groups:
            lines = b"".join(line(count + number) for number in range(events))
            count += events
            assert journal.append(lines, events) == count
            if data.draw(st.booleans()):
                journal.close()
                journal = Journal(path)
                assert journal.committed.events == count
        after = data.draw(st.integers(0, count))
        assert items_of(JournalReader(journal, after), size) == list(range(after, count))
        needed = data.draw(st.integers(0, count))
        journal.tidy([count, needed])
        assert items_of(JournalReader(Journal(path, needed), needed), size) == list(
            range(needed, count)
        )
    finally:
        patch.undo()


@pytest.mark.usefixtures("small_segments")
def test_a_reader_follows_what_is_appended_while_it_reads(tmp_path):
    journal = Journal(tmp_path / "journal")
    reader = JournalReader(journal, 0)
    seen = []
    for number in range(50):
        journal.append(line(number), 1)
        if number % 3 == 0:
            seen += items_of(reader)
    assert seen + items_of(reader) == list(range(50))
    assert len(journal.starts()) > 3


def test_a_line_that_was_half_written_is_cut_off(tmp_path):
    journal = Journal(tmp_path / "journal")
    journal.append(line(0) + line(1), 2)
    journal.close()
    with journal.file(0).open("ab") as file:
        file.write(line(2)[:-5])
    again = Journal(tmp_path / "journal")
    assert again.committed.events == 2
    again.append(line(7), 1)
    assert items_of(JournalReader(again, 0)) == [0, 1, 7]


def test_nothing_is_kept_of_what_the_disk_does_not_take(tmp_path):
    journal = Journal(tmp_path / "journal")
    journal.append(line(0), 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.committed.size + 20, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            journal.append(line(1), 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert journal.file(0).read_bytes() == line(0)
    assert journal.append(line(2), 1) == 2
    assert items_of(JournalReader(Journal(tmp_path / "journal"), 0)) == [0, 2]


def test_what_could_not_be_cut_off_is_cut_off_before_anything_else(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal")
    journal.append(line(0), 1)

    def refuse(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", refuse)
        broken.setattr(os, "ftruncate", refuse)
        with pytest.raises(OSError, match="Input"):
            journal.append(line(1), 1)
        with pytest.raises(OSError, match="Input"):
            journal.append(line(2), 1)
    journal.append(line(3), 1)
    assert items_of(JournalReader(journal, 0)) == [0, 3]


@pytest.mark.usefixtures("small_segments")
def test_files_go_only_when_every_checkpoint_is_past_them(tmp_path):
    journal = Journal(tmp_path / "journal")
    for number in range(20):
        journal.append(line(number), 1)
    starts = journal.starts()
    journal.tidy([20, starts[2] + 1])
    assert journal.starts() == starts[2:]
    journal.tidy([20, 20])
    assert journal.starts() == starts[-1:]  # so that numbers go on


@pytest.mark.usefixtures("small_segments")
def test_a_missing_file_is_reported(tmp_path):
    journal = Journal(tmp_path / "journal")
    for number in range(20):
        journal.append(line(number), 1)
    starts = journal.starts()
    journal.file(starts[1]).unlink()
    with pytest.raises(CelrecError, match=rf"events {starts[1]} to {starts[2] - 1} are missing"):
        Journal(tmp_path / "journal", 0)
    assert Journal(tmp_path / "journal", starts[2]).committed.events == 20


def test_numbers_go_on_after_what_was_learned_when_the_journal_is_gone(tmp_path):
    journal = Journal(tmp_path / "journal", 500)
    assert journal.append(line(0), 1) == 501
    assert items_of(JournalReader(Journal(tmp_path / "journal", 500), 500)) == [0]


def test_lines_that_rotted_are_set_aside_and_counted(tmp_path):
    journal = Journal(tmp_path / "journal")
    journal.append(line(0) + b"\x00\x00{\n" + line(2), 3)
    events = JournalReader(journal, 0).take(10)
    assert events.frame["item"].to_list() == [0, 2]
    assert events.rejected[0].place == "journal, event 1"
    assert events.offset == {"next": 3}


def test_further_ids_have_the_names_that_learning_expects(tmp_path):
    journal = Journal(tmp_path / "journal")
    journal.append(line(0, **{"ids:shop": "north"}) + line(1), 2)
    frame = JournalReader(journal, 0, ["shop"]).take(10).frame
    assert frame["ids:shop"].to_list() == ["north", None]


def test_integers_and_texts_may_be_mixed(tmp_path):
    journal = Journal(tmp_path / "journal")
    journal.append(line(0, user=7) + line(1, user="é\u2028x"), 2)
    assert JournalReader(journal, 0).take(10).frame["user"].to_list() == ["7", "é\u2028x"]
