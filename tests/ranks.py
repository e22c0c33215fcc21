"""Several ranks for tests: as processes that meet, or one of them without the others."""

import subprocess
import sys

import torch

from celrec.runtime.communicator import Communicator

_WORKER = """
import importlib
import sys
import torch
from torch import distributed
from celrec.runtime.communicator import default_communicator

rank, size, folder, module, function = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6]
torch.set_num_threads(1)
distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size
)
call = getattr(importlib.import_module(module), function)
torch.save(call(default_communicator(), *sys.argv[6:]), f"{folder}/{rank}.pt")
distributed.destroy_process_group()
"""


class Rank(Communicator):
    """One of several ranks that hears nothing from the others."""

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size


def run_ranks(size, folder, function, *words, timeout=300):
    """What `function(communicator, *words)`, of a module of tests, returns on each rank."""
    folder.mkdir(exist_ok=True)
    (folder / "meet").unlink(missing_ok=True)
    given = [str(size), str(folder), function.__module__, function.__name__, *map(str, words)]
    workers = [
        subprocess.Popen([sys.executable, "-c", _WORKER, str(rank), *given]) for rank in range(size)
    ]
    assert [worker.wait(timeout=timeout) for worker in workers] == [0] * size
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(size)]
