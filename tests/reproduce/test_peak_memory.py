import mmap
import sys

import numpy as np
import pytest

from reproduce import peak_memory
from reproduce.peak_memory import PeakMemory

_MB = 10**6


def take(size):
    """Take memory of the system and give it back: an array might lie where others have been."""
    with mmap.mmap(-1, size) as held:
        np.frombuffer(held, np.uint8).fill(1)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it")
def test_the_peak_is_that_of_the_block_and_of_nothing_before():
    take(100 * _MB)
    with PeakMemory() as little:
        pass
    with PeakMemory() as much:
        take(80 * _MB)
    assert 70 * _MB < much.nbytes - little.nbytes < 95 * _MB


def test_where_nobody_tells_it_is_not_known(tmp_path, monkeypatch):
    monkeypatch.setattr(peak_memory, "PROCESS", tmp_path / "nowhere")
    with PeakMemory() as peak:
        pass
    assert peak.nbytes is None
