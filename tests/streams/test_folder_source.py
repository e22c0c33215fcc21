import gzip
import threading
import time

import pytest

from celrec.errors import CelrecError
from celrec.streams.file_source import FolderSource
from tests.streams.events_checks import assert_same, gathered, rejections, rows

HEADER = "user,item,rating,time\n"


def put(folder, name, *users):
    """Write a file and rename it into place."""
    temporary = folder / f".{name}"
    temporary.write_text(HEADER + "".join(f"{user},a,1,{user}\n" for user in users))
    temporary.rename(folder / name)


def watch(folder):
    return FolderSource(folder, poll=0.02)


def users(batches):
    return [row[0] for row in rows(batches)]


def test_files_are_read_in_order_of_their_names_and_on_after_any_batch(tmp_path):
    put(tmp_path, "b.csv", 4, 5)
    put(tmp_path, "a.csv", 1, 2, 3)
    put(tmp_path, "c.csv")
    put(tmp_path, "d.csv", 6)
    batches = gathered(watch(tmp_path), 6, size=2)
    assert users(batches) == ["1", "2", "3", "4", "5", "6"]
    left = 6
    for number, batch in enumerate(batches[:-1], 1):
        left -= len(batch.frame)
        rest = gathered(watch(tmp_path), left, size=2, after=batch.offset)
        assert_same(rest, batches[number:])


def test_files_that_appear_are_read_once_they_have_their_name(tmp_path):
    source = watch(tmp_path).batches(10)
    assert len(next(source).frame) == 0
    (tmp_path / "a.csv.tmp").write_text(HEADER + "9,a,1,9\n")
    (tmp_path / "a.csv.part").write_text(HEADER + "9,a,1,9\n")
    (tmp_path / ".hidden.csv").write_text(HEADER + "9,a,1,9\n")
    (tmp_path / "folder").mkdir()
    assert len(next(source).frame) == 0
    put(tmp_path, "a.csv", 1)
    assert users([next(source)]) == ["1"]
    assert len(next(source).frame) == 0
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"user":2,"item":3,"label":1}'))
    assert next(source).frame.rows() == [(2, 3, 1.0)]


def test_files_written_by_another_thread_all_arrive_in_order(tmp_path):
    def write():
        for number in range(20):
            put(tmp_path, f"{number:03}.csv", number, number + 100)
            time.sleep(0.005)

    thread = threading.Thread(target=write)
    thread.start()
    batches = gathered(watch(tmp_path), 40, size=1)
    thread.join()
    assert users(batches) == [str(n + more) for n in range(20) for more in (0, 100)]


def test_a_file_that_comes_too_late_is_reported_once(tmp_path):
    put(tmp_path, "b.csv", 1)
    source = watch(tmp_path).batches(10)
    offset = next(source).offset
    put(tmp_path, "a.csv", 2)
    found = [next(source) for _ in range(3)]
    put(tmp_path, "c.csv", 3)
    found.append(next(source))
    assert users(found) == ["3"]
    reason = "the file appeared after 'b.csv' was started; give it a later name"
    assert rejections(found) == [(str(tmp_path / "a.csv"), reason)]
    # What lay there when reading was taken up again counts as finished.
    assert rejections(gathered(watch(tmp_path), 1, after=offset)) == []


def test_a_file_that_came_before_one_left_in_the_middle_is_reported(tmp_path):
    put(tmp_path, "b.csv", 1, 2, 3)
    offset = next(watch(tmp_path).batches(1)).offset
    put(tmp_path, "a.csv", 9)
    put(tmp_path, "c.csv", 4)
    batches = gathered(watch(tmp_path), 4, size=1, after=offset)
    assert users(batches) == ["2", "3", "4"]
    assert [place for place, _ in rejections(batches)] == [str(tmp_path / "a.csv")]


def test_a_finished_file_may_be_removed_and_an_unfinished_one_may_not(tmp_path):
    put(tmp_path, "a.csv", 1, 2, 3)
    first, second = gathered(watch(tmp_path), 3, size=2)
    (tmp_path / "a.csv").unlink()
    put(tmp_path, "b.csv", 4)
    assert users(gathered(watch(tmp_path), 1, after=second.offset)) == ["4"]
    with pytest.raises(CelrecError, match=r"a\.csv: no such file"):
        next(watch(tmp_path).batches(2, first.offset))


def test_late_rows_are_counted_across_files(tmp_path):
    put(tmp_path, "a.csv", 5, 7)
    put(tmp_path, "b.csv", 6, 8)
    source = watch(tmp_path)
    gathered(source, 4)
    assert source.late == 1


def test_a_file_that_cannot_be_read_is_an_error_after_what_could(tmp_path):
    lines = "".join(f"{user},a,1,1\n" for user in range(5000))
    content = gzip.compress((HEADER + lines).encode())
    (tmp_path / "a.csv.gz").write_bytes(content[:-4000])
    source, batches = watch(tmp_path).batches(100), []
    with pytest.raises(CelrecError, match="damaged archive"):
        for batch in source:
            batches.append(batch)  # noqa: PERF402  (what came before the error is to be kept)
    found = users(batches)
    assert found == [str(user) for user in range(len(found))]
    assert found
    (tmp_path / "a.csv.gz").write_bytes(content)
    rest = gathered(watch(tmp_path), 5000 - len(found), after=batches[-1].offset)
    assert found + users(rest) == [str(user) for user in range(5000)]


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(CelrecError, match="nothing: cannot watch it"):
        FolderSource(tmp_path / "nothing")
