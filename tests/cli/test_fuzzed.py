"""Files that were damaged in all kinds of ways: one clear line, never a traceback."""

import io
from contextlib import redirect_stderr, redirect_stdout

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celrec.cli.main import USER_ERROR, main

LOG = (
    "user,item,rating,timestamp\n"
    + "".join(f"u{n % 7},i{n % 5},{n % 5 + 1},{1_600_000_000 + n}\n" for n in range(40))
).encode()
PIECES = [
    *(b"\x00", b'"', b'""', b"\n", b"\r", b"\r\n", b",", b";", b"\t", b"::", b"\xff\xfe"),
    *(b"\xef\xbb\xbf", b"\xc3", b"nan", b"inf", b"-inf", b"1e400", b"-0", b"0x1", b"1_000"),
    *(b"99999999999999999999999999", b"-9223372036854775809", b"'", b"#", b"{", b"[]", b"null"),
    *("٣".encode(), "𝄞".encode(), "\u202e".encode(), b"x" * 5_000, b"user", b"rating,rating"),
]


@st.composite
def damaged(draw):
    """The log after a few cuts, copies and insertions."""
    content = LOG
    for _ in range(draw(st.integers(0, 6))):
        place, end = sorted(draw(st.tuples(*[st.integers(0, len(content))] * 2)))
        what = draw(st.sampled_from(["insert", "cut", "replace", "copy", "end", "noise"]))
        piece = draw(st.sampled_from(PIECES))
        if what == "insert":
            content = content[:place] + piece + content[place:]
        elif what == "cut":
            content = content[:place] + content[end:]
        elif what == "replace":
            content = content[:place] + piece + content[end:]
        elif what == "copy":
            content = content[:end] + content[place:end] + content[end:]
        elif what == "end":
            content = content[:place]
        else:
            content = content[:place] + draw(st.binary(max_size=20)) + content[place:]
    return content


def run(*words):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(words))
    return code, out.getvalue(), err.getvalue()


def check(code, err):
    assert code in (0, USER_ERROR), err
    assert "Traceback" not in err
    if code:
        assert err.startswith("celrec: ")
        assert err.count("\n") == 1
        assert len(err) < 1_000


anything = st.one_of(damaged(), st.binary(max_size=200))
quietly = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
few = settings(quietly, max_examples=max(quietly.max_examples // 4, 1))


@quietly
@given(anything, st.sampled_from([".csv", ".tsv", ".txt", ".dat"]))
def test_a_damaged_log_is_described_or_complained_about(tmp_path, content, ending):
    path = tmp_path / f"log{ending}"
    path.write_bytes(content)
    code, _, err = run("data", "describe", str(path), "--json")
    check(code, err)
    code, _, err = run("data", "describe", str(path), "--json", "--drop-invalid")
    check(code, err)


@quietly
@given(anything)
def test_a_damaged_stream_is_learned_or_complained_about(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "log.csv").write_bytes(content)
    words = ("--run", str(folder / "run"), "--compression", "2", "--rank", "2", "--json")
    code, _, err = run("online", str(folder / "log.csv"), *words)
    check(code, err)


@few
@given(damaged())
def test_a_damaged_log_is_trained_on_or_complained_about(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "log.csv").write_bytes(content)
    words = ("--compression", "2", "--rank", "2", "--out", str(folder / "run"), "--json")
    code, _, err = run("train", str(folder / "log.csv"), *words)
    check(code, err)


@few
@given(st.binary(max_size=300))
def test_bytes_that_pose_as_other_files(tmp_path, content):
    for ending in (".parquet", ".csv.gz", ".zip", ".csv.zip"):
        path = tmp_path / f"log{ending}"
        path.write_bytes(content)
        code, _, err = run("data", "describe", str(path), "--json")
        check(code, err)
        assert code == USER_ERROR


@pytest.mark.parametrize("name", ["log.csv", "folder.csv"])
def test_no_file_at_all(tmp_path, name):
    (tmp_path / "folder.csv").mkdir()
    code, _, err = run("data", "describe", str(tmp_path / name))
    check(code, err)
    assert code == USER_ERROR
