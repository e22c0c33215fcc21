"""How the service answers while events come in, and whether it keeps what it took.

    python benchmarks/serve.py               # 20 seconds of it
    python benchmarks/serve.py --seconds 60
    python benchmarks/serve.py --together 1  # each event a request of its own

A planted online run as large as MovieLens-100k is served on loopback. One client process asks
/recommend on a few connections, each for the next user as soon as the last answer is there, while
1,000 events a second come, ten in a request; every tenth is of a user who was never seen.
Then the server is killed (SIGKILL) in the middle of it and started again, and every event that was
acknowledged is looked for.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import polars as pl

from celrec import Planted
from celrec.cli.online import opened_run
from celrec.runs.online_run import OnlineRun
from celrec.streams.events import Events

_USERS, _ITEMS, _ROWS = 943, 1_682, 100_000
_ASKING, _SENDING, _RATE = 4, 128, 1_000


def make_run(folder: Path) -> None:
    log = Planted(_ROWS, _USERS, _ITEMS, dim=4, item_clusters=12, noise=0.3).interactions()
    frame = pl.DataFrame(
        {"user": log.user.astype(np.int64), "item": log.item.astype(np.int64), "target": log.target}
    )
    with opened_run(folder, {"compression": "32"}) as run:
        for start in range(0, len(frame), 256):
            run.learn(Events(frame[start : start + 256], {}))
        run.offset = None
        run.checkpoint()


class Connection:
    """The least that is needed of HTTP/1.1, so that the client is not what is measured."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> "Connection":
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def ask(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """The status and the content of the answer."""
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._writer.write(head.encode() + b"\r\n" + (body or b""))
        lines = (await self._reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        length = next(line for line in lines if line.lower().startswith(b"content-length:"))
        content = await self._reader.readexactly(int(length.split(b":")[1]))
        return int(lines[0].split()[1]), content


class Tally:
    """What came of it."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.sent: list[float] = []
        self.acknowledged: list[int] = []
        self.errors = 0
        self.late = 0.0


async def ask_on(connection: Connection, tally: Tally, random: np.random.Generator) -> None:
    while True:
        user, begun = random.integers(_USERS), time.perf_counter()
        status, _ = await connection.ask(f"/recommend?user={user}&k=10")
        tally.asked.append(time.perf_counter() - begun)
        tally.errors += status != 200


async def send_on(connection: Connection, numbers: asyncio.Queue[range], tally: Tally) -> None:
    random = np.random.default_rng(id(connection) % 1000)
    while True:
        some = await numbers.get()
        events = [
            {
                "user": f"bench-{number}" if number % 10 == 0 else int(random.integers(_USERS)),
                "item": int(random.integers(_ITEMS)),
                "target": 3.0,
            }
            for number in some
        ]
        begun = time.perf_counter()
        status, _ = await connection.ask("/events", json.dumps({"events": events}).encode())
        tally.sent.append(time.perf_counter() - begun)
        if status == 202:
            tally.acknowledged.extend(some)
        else:
            tally.errors += 1


async def load(port: int, seconds: float, together: int, kill: int) -> Tally:
    """Ask and send for some seconds; then kill the server while both go on."""
    tally, numbers = Tally(), asyncio.Queue[range]()
    random = np.random.default_rng(0)
    asking = [await Connection(port).open() for _ in range(_ASKING)]
    sending = [await Connection(port).open() for _ in range(_SENDING)]
    tasks = [asyncio.create_task(ask_on(one, tally, random)) for one in asking]
    tasks += [asyncio.create_task(send_on(one, numbers, tally)) for one in sending]
    begun, number = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < seconds:
        while number < passed * _RATE:
            numbers.put_nowait(range(number, number + together))
            number += together
        tally.late = max(tally.late, numbers.qsize() * together / _RATE)
        await asyncio.sleep(0.002)
    os.kill(kill, 9)
    _, waiting = await asyncio.wait(tasks, timeout=2)
    for task in waiting:  # for events that were not due yet
        task.cancel()
    # The connections of the others broke: so it should be.
    await asyncio.gather(*tasks, return_exceptions=True)
    return tally


def start(folder: Path) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "celrec", "serve", str(folder), "--port", "0"]
    server = subprocess.Popen(
        [*command, "--checkpoint-seconds", "5"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None  # noqa: S101
    line = server.stdout.readline()
    return server, int(line.split("http://127.0.0.1:")[1].split()[0])


async def health(port: int) -> dict[str, int]:
    connection = await Connection(port).open()
    told: dict[str, int] = json.loads((await connection.ask("/healthz"))[1])
    return told


def spent(process: int) -> float:
    """Seconds of the processor so far."""
    numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def milliseconds(times: list[float]) -> str:
    low, high = np.percentile(times, [50, 99]) * 1e3
    return f"p50 {low:.1f} ms, p99 {high:.1f} ms, longest {max(times) * 1e3:.0f} ms"


def main(seconds: float, together: int) -> int:
    folder = Path(mkdtemp(), "run")
    make_run(folder)
    server, port = start(folder)
    asyncio.run(health(port))
    before, begun = time.process_time(), spent(server.pid)
    tally = asyncio.run(load(port, seconds, together, server.pid))
    client = time.process_time() - before
    usage = os.wait4(server.pid, 0)[2]
    used = usage.ru_utime + usage.ru_stime - begun
    print(f"/recommend: {len(tally.asked) / seconds:,.0f} a second, {milliseconds(tally.asked)}")
    print(
        f"/events: {len(tally.sent) / seconds:,.0f} a second with {together} each, "
        f"{milliseconds(tally.sent)}"
    )
    print(f"errors: {tally.errors}; the client was late by {tally.late:.2f} s at most")
    each = used / (len(tally.asked) + len(tally.sent)) * 1e3
    print(
        f"processor: server {used:.1f} s of {seconds:g}, {each:.2f} ms a request with what is "
        f"learned; client {client:.1f} s; {os.getloadavg()[0]:.1f} processes wanted to run"
    )

    begun = time.perf_counter()
    server, port = start(folder)
    told = asyncio.run(health(port))
    while told["waiting"] or told["learned"] < len(tally.acknowledged):
        time.sleep(0.05)
        told = asyncio.run(health(port))
    print(f"killed; {told['learned']:,} events are there after {time.perf_counter() - begun:.1f} s")
    server.terminate()
    code = server.wait()
    with OnlineRun.resume(folder) as run:
        users = run.learner.tables["users"]
        counts = dict(zip(users.ids.ids.to_list(), users.counts.tolist(), strict=True))
        new = [number for number in tally.acknowledged if number % 10 == 0]
        lost = sum(counts.get(f"bench-{number}", 0) != 1 for number in new)
        more = run.journal - len(tally.acknowledged)
        sums = run.events == _ROWS + run.journal
    shutil.rmtree(folder.parent)
    print(
        f"{len(tally.acknowledged):,} were acknowledged, {more} more were taken and could not be; "
        f"of {len(new):,} that can be told apart {lost} are not there once; "
        f"the sum is {'right' if sums else 'WRONG'}"
    )
    return int(bool(tally.errors or lost or more < 0 or not sums or code))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--together", type=int, default=10, help="How many events a request has.")
    given = parser.parse_args()
    sys.exit(main(given.seconds, given.together))
