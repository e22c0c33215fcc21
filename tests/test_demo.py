import os
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from celrec import fit

ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
DEMO = Path(__file__).parents[1] / "examples/demo.py"


@pytest.fixture
def no_network(no_package_index, closed_port, monkeypatch):  # noqa: ARG001
    for scheme in ("http", "https"):
        for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper()):
            monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name)


def errors(shown):
    """The test errors by what stands for the items."""
    rows = re.findall(r"^ (\w+) +[\d,-]+ +[\d,]+ +[\d,]+ +(\d\.\d{4}) ", shown, re.M)
    return {name: float(error) for name, error in rows}


@pytest.mark.usefixtures("no_network")
def test_where_nothing_can_be_fetched_synthetic_ratings_do(cache, tmp_path, monkeypatch, capsys):
    demo = runpy.run_path(str(DEMO))

    def short(how):
        return replace(how, schedule=replace(how.schedule, steps=30))

    # Whether it comes to its end is what counts here, not how good it is then.
    monkeypatch.setitem(demo["demo"].__globals__, "fit", partial(fit, change=short))
    assert demo["demo"](tmp_path / "run") == 0
    shown = capsys.readouterr().out
    assert "on fold 1 of 5 of synthetic" in shown
    found = errors(shown)
    assert set(found) == {"biases", "full", "hashing", "CEL"}
    assert found["CEL"] < min(found["biases"], found["hashing"])
    assert list(cache.rglob("*.parquet")) == []
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Full embedding" in page
    assert "Clusters of items" in page


@pytest.mark.usefixtures("data_folder", "no_network")
def test_on_movielens_cel_beats_hashing_and_biases_with_few_bytes():
    done = subprocess.run(
        [sys.executable, str(DEMO)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        # One thread: with two, a busy machine makes each step wait for both.
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **ONE_THREAD},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    shown = done.stdout
    assert "on fold 1 of 5 of ml-100k" in shown
    found = errors(shown)
    assert 0.85 < found["biases"] < 0.90
    assert found["CEL"] < 0.8689 - 0.05  # what the paper reports at 5 %
    assert found["full"] < found["CEL"] < found["full"] + 0.005
    assert found["CEL"] < found["hashing"] - 0.05
    assert "Star Wars (1977)" in shown
    assert Path(re.findall(r"^(\S+/report\.html)", shown, re.M)[-1]).is_file()
