"""What a budget of memory does to an online run with many ids: speed, memory, and no result.

    python benchmarks/memory.py                  # 5 million users and as many items
    python benchmarks/memory.py --ids 1000000

Each run is a process of its own: it learns a stream of conversions, writes a checkpoint and goes
on from it. Memory is what the kernel tells: RssAnon, which only swapping can take away, and
RssFile, which is the page cache's.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from celrec.config.plan import Plan
from celrec.runs.online_run import OnlineRun
from celrec.runtime.memory_budget import byte_size
from celrec.streams.events import Events
from reproduce.conversion_stream import ConversionStream

_BATCH = 8192


def rss() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {one[0]: int(one[1]) >> 10 for one in lines if one[0] in ("RssAnon:", "RssFile:")}


class Peak:
    """The most anonymous memory within a block, in MiB."""

    def __enter__(self) -> "Peak":
        self.most, self._end = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._end.wait(0.005):
            self.most = max(self.most, rss()["RssAnon:"])

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()


def clocks() -> NDArray[np.float64]:
    """Seconds by the clock and of the processor, the latter whatever else the machine does."""
    return np.array([time.perf_counter(), time.process_time()])


def told(run: OnlineRun) -> dict[str, int]:
    held = 0 if run.learner.room is None else run.learner.room.held
    return {
        "bytes_mib": sum(run.learner.nbytes.values()) >> 20,
        "held_mib": held >> 20,
        "mapped_mib": run.mapped >> 20,
        "anon_mib": rss()["RssAnon:"],
        "file_mib": rss()["RssFile:"],
    }


def measure(ids: int, embedding: str, memory: int | None, folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    # All ids are alike likely: none of their pages is worth more than others.
    stream = ConversionStream(3 * ids, ids, ids, 20, 20, user_skew=0, item_skew=0, own=0.5)
    preset = "online" if embedding == "full" else "default"
    plan = Plan(embedding=embedding, preset=preset, model="mf", compression="32", rank=8)
    place, spent, events = folder / "run", np.zeros(2), 0
    with OnlineRun.start(place, plan, memory=memory) as run:
        for frame in stream.frames():
            for start in range(0, len(frame), _BATCH):
                batch = Events(frame[start : start + _BATCH], {"row": events})
                begun = clocks()
                run.learn(batch)
                spent += clocks() - begun
                events += len(batch.frame)
        del frame, batch
        result = {"ids": run.known, **told(run)}
        result["events_per_second"], result["of_processor_time"] = (events / spent).round().tolist()
        begun = time.perf_counter()
        with Peak() as peak:
            run.checkpoint()
        result["write_seconds"] = round(time.perf_counter() - begun, 1)
        result["peak_writing_mib"] = peak.most
        result["after_writing_mib"] = rss()["RssAnon:"]
        result["sha256"] = digest(place)
    result["scratch_files"] = sorted(p.name for p in place.iterdir())
    return result


def resume(ids: int, embedding: str, memory: int | None, folder: Path) -> dict[str, Any]:
    del ids, embedding
    begun = time.perf_counter()
    with Peak() as peak, OnlineRun.resume(folder / "run", memory=memory) as run:
        seconds = round(time.perf_counter() - begun, 1)
        return {"resume_seconds": seconds, "peak_resuming_mib": peak.most, **told(run)}


def digest(run: Path) -> str:
    found = hashlib.sha256()
    for path in sorted((run / "checkpoints").glob("*/*.safetensors")):
        for name, tensor in sorted(load_file(path).items()):
            found.update(name.encode())
            found.update(tensor.reshape(-1).numpy().data)
    for path in (*sorted((run / "checkpoints").glob("*/*.parquet")), *(run / "seen").glob("*")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", type=int, default=5_000_000)
    parser.add_argument("--embedding", default="cel-lite")
    parser.add_argument("--memory", nargs="*", default=["none", "quarter"])
    parser.add_argument("--folder", type=Path, default=None)
    asked = parser.parse_args()
    needed = 0
    for memory in asked.memory:
        budget = {"none": None, "quarter": needed // 4}.get(memory, -1)
        budget = byte_size(memory) if budget == -1 else budget
        folder = Path(tempfile.mkdtemp(dir=asked.folder))
        try:
            for work in (measure, resume):  # each in a fresh process
                with multiprocessing.get_context("forkserver").Pool(1) as pool:
                    done = pool.apply(work, (asked.ids, asked.embedding, budget, folder))
                print(
                    json.dumps({"memory": budget, "load": os.getloadavg()[0], **done}), flush=True
                )
                needed = needed or done["bytes_mib"] << 20
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
