import copy
import subprocess
import sys
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celrec import UNSEEN, CelrecError, IdMap
from celrec.data import id_map

integers = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=20)
batches = st.one_of(st.lists(st.lists(integers)), st.lists(st.lists(texts)))


class SlowIdMap:
    """The obvious map: a dict, one id at a time."""

    def __init__(self):
        self.known = {}

    def extend(self, ids):
        return [self.known.setdefault(i, len(self.known)) for i in ids]

    def encode(self, ids):
        return [self.known.get(i, UNSEEN) for i in ids]


def series(ids):
    return pl.Series(ids, dtype=pl.String if ids and isinstance(ids[0], str) else pl.Int64)


@given(batches)
def test_agrees_with_a_dict_however_the_stream_is_cut(stream):
    fast, slow = IdMap(), SlowIdMap()
    for ids in stream:
        if ids:
            assert fast.extend(series(ids)).tolist() == slow.extend(ids)
    everything = [i for ids in stream for i in ids]
    if everything:
        assert fast.encode(series(everything)).tolist() == slow.encode(everything)
        assert fast.decode(fast.encode(series(everything))).to_list() == everything
    assert fast.ids.to_list() == list(slow.known)
    assert len(fast) == len(slow.known)


@given(st.lists(st.lists(st.integers(0, 30).map(str))), st.integers(1, 20))
def test_new_ids_may_wait_to_be_taken_out_of_what_they_came_in(stream, rows):
    with patch.object(id_map, "_PENDING", rows):
        fast, slow = IdMap(), SlowIdMap()
        for ids in stream:
            assert fast.extend(pl.Series(ids, dtype=pl.String)).tolist() == slow.extend(ids)
        size = fast.nbytes
        assert fast.ids.to_list() == list(slow.known)
        assert abs(fast.nbytes - size) <= 32 * len(stream)


@given(st.lists(integers, unique=True), st.lists(integers))
def test_unknown_ids_are_unseen_and_change_nothing(known, asked):
    ids = IdMap(series(known))
    before = ids.ids.to_list()
    expected = [known.index(i) if i in known else UNSEEN for i in asked]
    assert ids.encode(series(asked)).tolist() == expected
    assert ids.ids.to_list() == before


def test_grows_past_many_doublings_without_renumbering():
    ids = IdMap()
    first = ids.extend(np.arange(500_000) * 1_048_576)  # equal low bits must not pile up
    second = ids.extend(np.arange(1_000_000) * 1_048_576)
    assert (first == np.arange(500_000)).all()
    assert (second == np.arange(1_000_000)).all()


@given(batches, st.data())
def test_those_that_are_kept_are_numbered_anew_and_others_were_never_seen(stream, data):
    fast, slow = IdMap(), SlowIdMap()
    for ids in stream:
        if ids:
            fast.extend(series(ids))
            slow.extend(ids)
        kept = [one for one in slow.known if data.draw(st.booleans())]
        fast.keep(np.array([slow.known[one] for one in kept], np.int64))
        gone = [one for one in slow.known if one not in kept]
        slow.known = {one: number for number, one in enumerate(kept)}
        assert fast.ids.to_list() == kept
        assert len(fast) == len(kept)
        for asked in (kept, gone):
            if asked:
                assert fast.encode(series(asked)).tolist() == slow.encode(asked)


def test_to_keep_few_takes_the_memory_of_few():
    ids = IdMap([f"a rather long name with number {number}" for number in range(10_000)])
    before = ids.nbytes
    ids.keep(np.arange(0, 10_000, 100))
    assert ids.nbytes < before / 50
    ids.keep(np.empty(0, np.int64))
    assert ids.extend([7, 8]).tolist() == [0, 1]  # it may be a map of integers now
    assert ids.ids.dtype == pl.Int64


def test_negative_ids_and_the_ends_of_int64_come_back():
    values = [-1, 0, 2**63 - 1, -(2**63)]
    assert IdMap(values).ids.to_list() == values


def test_integers_beyond_int64_are_kept_exactly_as_strings():
    huge = pl.Series([2**64 - 1, 3], dtype=pl.UInt64)
    ids = IdMap(huge)
    assert ids.ids.to_list() == ["18446744073709551615", "3"]
    assert ids.encode(huge).tolist() == [0, 1]
    assert ids.encode([3]).tolist() == [1]


def test_integers_that_meet_other_strings_become_strings():
    ids = IdMap([5, 7])
    assert ids.extend(["7", "x", "07"]).tolist() == [1, 2, 3]
    assert ids.ids.to_list() == ["5", "7", "x", "07"]
    assert ids.encode([5, 8]).tolist() == [0, UNSEEN]


def test_a_map_of_integers_understands_their_text_but_not_a_leading_zero():
    assert IdMap([7]).encode(["7", "07", "+7", "seven", None]).tolist() == [0, -1, -1, -1, -1]


def test_text_becomes_integers_only_if_nothing_is_lost():
    assert IdMap(["3", "-1"]).with_integers().ids.to_list() == [3, -1]
    assert IdMap(["3", "03"]).with_integers().ids.to_list() == ["3", "03"]
    late = [str(n) for n in range(2000)] + ["x"]
    assert IdMap(late).with_integers().ids.to_list() == late


def test_whole_floats_are_integers_and_others_are_refused():
    assert IdMap([1.0, 2.0]).ids.to_list() == [1, 2]
    with pytest.raises(CelrecError, match="fractions"):
        IdMap([1.5])
    with pytest.raises(CelrecError, match="2\\*\\*53"):
        IdMap([1e300])


@pytest.mark.parametrize("bad", [[True, False], [[1], [2]], [b"x"]])
def test_other_types_are_refused(bad):
    with pytest.raises(CelrecError, match="integers or strings"):
        IdMap(bad)


def test_missing_ids_cannot_be_added_but_can_be_asked_for():
    ids = IdMap(["a"])
    with pytest.raises(CelrecError, match="1 of 2 are missing"):
        ids.extend(["a", None])
    assert ids.encode(["a", None]).tolist() == [0, UNSEEN]


def test_decode_refuses_what_was_never_given_out():
    with pytest.raises(CelrecError, match="-1 … 0"):
        IdMap(["a"]).decode([1])


@pytest.mark.parametrize("values", [[3, 1, 2], ["b", "a", "ü"]])
def test_save_load_and_continue_equals_never_having_stopped(tmp_path, values):
    ids = IdMap(values)
    ids.save(tmp_path / "ids.parquet")
    loaded = IdMap.load(tmp_path / "ids.parquet")
    more = [values[2], values[0], values[0] * 2]
    assert loaded.extend(more).tolist() == ids.extend(more).tolist()
    assert loaded.ids.equals(ids.ids)
    assert [p.name for p in tmp_path.iterdir()] == ["ids.parquet"]


def test_an_empty_map_holds_nothing(tmp_path):
    IdMap().save(tmp_path / "ids.parquet")
    loaded = IdMap.load(tmp_path / "ids.parquet")
    assert len(loaded) == 0
    assert loaded.encode(["a"]).tolist() == [UNSEEN]


def test_a_truncated_file_is_reported_and_so_is_a_missing_one(tmp_path):
    path = tmp_path / "ids.parquet"
    IdMap(range(1000)).save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CelrecError, match=r"not a file that IdMap\.save wrote"):
        IdMap.load(path)
    with pytest.raises(CelrecError, match="no such file"):
        IdMap.load(tmp_path / "absent")


def test_a_file_with_repeated_ids_is_refused(tmp_path):
    pl.DataFrame({"id": [1, 1]}).write_parquet(tmp_path / "ids.parquet")
    with pytest.raises(CelrecError, match="twice"):
        IdMap.load(tmp_path / "ids.parquet")


def test_a_copy_grows_on_its_own():
    ids = IdMap(["a"])
    twin = copy.deepcopy(ids)
    twin.extend(["b"])
    assert (len(ids), len(twin)) == (1, 2)


def test_ids_do_not_keep_the_blocks_they_came_from_alive():
    # Forty blocks of 4 MB, of which a hundredth is new; in a process of its own, to be measured.
    code = """
import polars as pl
from celrec import IdMap

def held():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) >> 10

ids = IdMap(["x" * 40])
before = held()
for block in range(40):
    ids.extend(pl.Series([f"{block:020d}{n % 1000:020d}" for n in range(100_000)]))
assert len(ids) == 40_001
print(held() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 80


def test_numpy_pandas_and_arrow_ids_are_taken():
    import pandas as pd
    import pyarrow as pa

    for values in (np.array(["a", "b"]), pd.Series(["a", "b"]), pa.array(["a", "b"])):
        assert IdMap(values).ids.to_list() == ["a", "b"]
    assert IdMap(np.array([3, 4], np.int16)).ids.to_list() == [3, 4]


def test_a_copy_knows_what_was_known_and_nothing_of_what_comes_later():
    ids = IdMap([5, 7])
    copy = ids.copy()
    ids.extend(range(1000))
    ids.extend(["text"])
    assert copy.encode([5, 7, 8]).tolist() == [0, 1, -1]
    assert (len(copy), copy.ids.to_list()) == (2, [5, 7])
    copy.extend([9])
    assert len(ids) == 1001
    assert ids.encode(["9"]).tolist() == [IdMap([5, 7, *range(1000)]).encode([9])[0]]
