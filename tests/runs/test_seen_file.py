from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from celrec import CelrecError, Planted
from celrec.config.building import make_model
from celrec.config.plan import Plan
from celrec.runs.run_folder import load_run, save_run, trained_run
from celrec.runs.seen_log import seen_in


@pytest.fixture(scope="module")
def log():
    return Planted(500, 20, 30, dim=2, item_clusters=3).interactions()


def pairs_of(seen):
    return list(zip(*(part.tolist() for part in seen.events()), strict=True))


def test_what_users_have_seen_is_in_the_order_of_time(log):
    rng = np.random.default_rng(0)
    timed = replace(log, timestamp=rng.integers(0, 50, len(log)))
    pairs = list(zip(log.user.tolist(), log.item.tolist(), strict=True))
    assert pairs_of(seen_in(replace(log, timestamp=None))) == pairs
    order = sorted(range(len(log)), key=lambda row: timed.timestamp[row])
    assert pairs_of(seen_in(timed)) == [pairs[row] for row in order]


@pytest.mark.parametrize("model", ["nmf", "din"])
def test_a_run_folder_keeps_what_users_have_seen(log, tmp_path, model):
    plan = Plan("cel", "4", rank=4, model=model)
    made = make_model(log, plan)
    save_run(tmp_path / "run", trained_run(log[:300], made, plan, {}, {}, {}))
    assert load_run(tmp_path / "run").seen is None
    assert pairs_of(load_run(tmp_path / "run", seen=True).seen) == pairs_of(seen_in(log[:300]))
    # More than it was trained on, if there is more.
    save_run(tmp_path / "run", trained_run(log[:300], made, plan, {}, {}, {}, seen=log))
    known = load_run(tmp_path / "run", seen=True)
    assert pairs_of(known.seen) == pairs_of(seen_in(log))
    assert known.items["interactions"].sum() == 300
    assert (tmp_path / "run/seen.parquet").stat().st_size < 8 * len(log) + 2000


def test_earlier_versions_did_not_tell(log, tmp_path):
    plan = Plan("cel", "4", rank=4)
    save_run(tmp_path / "run", trained_run(log, make_model(log, plan), plan, {}, {}, {}))
    (tmp_path / "run/seen.parquet").unlink()
    assert load_run(tmp_path / "run", seen=True).seen is None


@pytest.mark.parametrize("damage", [b"", b"\xff" * 90, "other columns", "words", "strangers"])
def test_a_damaged_file_is_told_in_one_line(log, tmp_path, damage):
    plan = Plan("cel", "4", rank=4)
    save_run(tmp_path / "run", trained_run(log, make_model(log, plan), plan, {}, {}, {}))
    path = tmp_path / "run/seen.parquet"
    if isinstance(damage, bytes):
        path.write_bytes(damage)
    else:
        columns = {
            "other columns": {"user": [1], "items": [1]},
            "words": {"user": [1], "item": ["one"]},
            "strangers": {"user": [2**30], "item": [1]},
        }
        pl.DataFrame(columns[damage]).write_parquet(path)
    load_run(tmp_path / "run")
    with pytest.raises(CelrecError) as told:
        load_run(tmp_path / "run", seen=True)
    assert str(told.value).startswith(str(tmp_path / "run"))
    assert "\n" not in str(told.value)
