"""Models of others, trained for real with and without clusters, as their examples do it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.hosts
EXAMPLES = Path(__file__).parents[2] / "examples"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def run(name):
    """AUC, log loss, bytes, and bytes of the index, of full and of clustered tables."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        env={**os.environ, **ONE_THREAD},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(
        r"^(full|clustered) +([\d.]+) +([\d.]+) +([\d,]+) +([\d,]+)$", done.stdout, re.M
    )
    assert [row[0] for row in rows] == ["full", "clustered"]
    return [[float(number.replace(",", "")) for number in row[1:]] for row in rows]


@pytest.mark.parametrize(
    ("name", "smaller"),
    # The models called DeepFM have a number for each id in their linear part, which stays.
    [("deepctr_torch_deepfm", 8), ("fuxictr_deepfm", 8), ("torchrec_managed_collision", 15)],
)
@pytest.mark.usefixtures("data_folder")
def test_tables_shrink_and_the_metric_holds(name, smaller):
    (auc, loss, size, index), (auc_clustered, loss_clustered, size_clustered, map_) = run(name)
    assert index == 0
    assert map_ > 0
    assert size_clustered * smaller < size
    assert auc > 0.76  # the host has learned something
    assert auc_clustered > auc - 0.01
    assert loss_clustered < loss + 0.02
