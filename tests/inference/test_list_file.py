import polars as pl
import pytest

from celrec import CelrecError
from celrec.inference.export import write_list_file


def frames(count, begun=None):
    for n in range(count):
        if begun is not None:
            begun.append(n)
        yield pl.DataFrame({"user": [f"{n}, a", f"{n} b"], "score": [0.5, n / 8]})


@pytest.mark.parametrize(("suffix", "read"), [("csv", pl.read_csv), ("parquet", pl.read_parquet)])
def test_frames_are_written_one_below_the_other(tmp_path, suffix, read):
    path = tmp_path / f"lists.{suffix}"
    assert write_list_file(path, frames(30)) == 60
    assert read(path).equals(pl.concat(frames(30)))
    assert write_list_file(path, frames(1)) == 2
    assert read(path).equals(next(frames(1)))
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_nothing_is_left_of_what_fails_and_what_was_there_stays(tmp_path, suffix):
    path = tmp_path / f"lists.{suffix}"
    write_list_file(path, frames(2))
    before = path.read_bytes()

    def failing():
        yield from frames(3)
        raise RuntimeError("no more")

    with pytest.raises(Exception, match="no more"):
        write_list_file(path, failing())
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_only_two_kinds_of_files_are_written(tmp_path):
    begun = []
    with pytest.raises(CelrecError, match=r"lists.xlsx: must end in .csv or .parquet; rename it"):
        write_list_file(tmp_path / "lists.xlsx", frames(1, begun))
    assert begun == []
