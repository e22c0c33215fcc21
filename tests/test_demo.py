import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "examples/demo.py"


@pytest.fixture
def demo(no_package_index, closed_port, monkeypatch):  # noqa: ARG001
    """A function that runs the demo where nothing can be fetched, and gives what it prints."""
    for scheme in ("http", "https"):
        for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper()):
            monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name)

    def demo():
        done = subprocess.run(
            [sys.executable, str(DEMO)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    return demo


def errors(shown):
    """The test errors of always the mean and of the biases."""
    return [float(error) for error in re.findall(r"test MSE (\d+\.\d+)", shown)]


def test_where_nothing_can_be_fetched_synthetic_ratings_do(demo, cache):
    shown = demo()
    assert "What the plainest models reach on synthetic" in shown
    mean, biases = errors(shown)
    assert biases < mean
    assert list(cache.rglob("*.parquet")) == []


@pytest.mark.usefixtures("data_folder")
def test_biases_reach_on_movielens_what_they_are_known_to(demo):
    shown = demo()
    assert "What the plainest models reach on ml-100k" in shown
    mean, biases = errors(shown)
    assert 1.1 < mean < 1.4
    assert 0.85 < biases < 0.90
