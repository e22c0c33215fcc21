import polars as pl
import pytest

from celrec import CelrecError, IdMap
from celrec.data.reading import read_id_file


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("ids.txt", "a\n b \n\nc,d\n", ["a", "b", "c,d"]),
        ("ids", "7\r\n007\r\n", ["7", "007"]),
        ("ids.csv", "item,title\n7,Seven\n,None\n007,Bond\n", ["7", "007"]),
        ("IDS.TSV", "item\ttitle\nx y\tA\n", ["x y"]),
        ("bom.txt", "\ufeffa\nb", ["a", "b"]),
    ],
)
def test_ids_are_read_as_they_stand(tmp_path, name, text, expected):
    (tmp_path / name).write_bytes(text.encode())
    assert read_id_file(tmp_path / name).to_list() == expected


def test_numbers_in_a_parquet_file_are_numbers_and_all_kinds_find_their_ids(tmp_path):
    pl.DataFrame({"item": [7, None, 9], "x": [1, 2, 3]}).write_parquet(tmp_path / "ids.parquet")
    (tmp_path / "ids.txt").write_text("7\n9\n")
    known = IdMap([9, 8, 7])
    for name in ("ids.parquet", "ids.txt"):
        assert known.encode(read_id_file(tmp_path / name)).tolist() == [2, 0]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.parquet"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\x00\x01\n\xff", b"header\n", "folder"])
def test_what_cannot_be_read_is_reported_in_one_line(tmp_path, name, content):
    path = tmp_path / name
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    if (name, content) == ("a.txt", b"header\n"):
        assert read_id_file(path).to_list() == ["header"]
        return
    with pytest.raises(CelrecError) as message:
        read_id_file(path)
    assert str(message.value).startswith(f"{path}: ")
    assert "\n" not in str(message.value)
