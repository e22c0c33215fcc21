"""Processes that are threads of this one, so that many groups of them can be tried in a test."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from celrec.clustering.ranks import Ranks


class FellowRanks(Ranks):
    """One of several threads that exchange what they have by way of a common list."""

    def __init__(self, rank, size, desk, barrier):
        super().__init__(rank, size)
        self._desk, self._barrier = desk, barrier
        self.messages = 0
        self.sent = 0

    def exchanged(self, values, sent, taken):
        self.messages += 1
        self.sent += values.nbytes
        self._desk[self.rank] = torch.split(values, sent)
        self._barrier.wait()
        found = torch.cat([self._desk[other][self.rank] for other in range(self.size)])
        assert len(found) == sum(taken)
        self._barrier.wait()
        return found

    def gathered(self, values):
        return self.exchanged_any([values] * self.size)

    def exchanged_any(self, values):
        self._desk[self.rank] = values
        self._barrier.wait()
        found = [self._desk[other][self.rank] for other in range(self.size)]
        self._barrier.wait()
        return found


def together(size, work):
    """What `work` gives to each of so many ranks, which do it at the same time."""
    desk, barrier = [None] * size, threading.Barrier(size, timeout=30)

    def one(rank):
        try:
            return work(FellowRanks(rank, size, desk, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))
