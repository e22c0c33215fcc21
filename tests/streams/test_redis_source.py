import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celrec.errors import CelrecError
from celrec.streams.redis_source import RedisSource
from tests.streams.events_checks import gathered, rejections, rows


@pytest.fixture
def stream(redis_stream):
    return redis_stream[1]


@pytest.fixture
def client(redis_stream):
    return redis_stream[0].client


@pytest.fixture
def make(redis_stream):
    """A function that makes sources, which are closed at the end."""
    server, stream = redis_stream
    made = []

    def source(**options):
        made.append(RedisSource(server.url, stream, **{"linger": 0.05, **options}))
        return made[-1]

    yield source
    for one in made:
        one.close()


def add(client, stream, *users):
    for user in users:
        client.xadd(stream, {"user": user, "item": "a", "target": "1", "timestamp": user})


def users(batches):
    return [int(row[0]) for row in rows(batches)]


def waiting(client, stream):
    """How many entries were delivered and not acknowledged."""
    return client.xpending(stream, "celrec")["pending"]


def test_a_group_is_made_and_all_entries_are_delivered_in_order(make, client, stream):
    add(client, stream, *range(10))
    source = make()
    batches = gathered(source, 10, size=4)
    assert users(batches) == list(range(10))
    assert [len(batch.frame) for batch in batches] == [4, 4, 2]
    assert batches[0].frame.columns == ["user", "item", "target", "timestamp"]
    assert client.xinfo_groups(stream)[0]["name"] == b"celrec"
    assert stream in str(source)


def test_what_was_not_acknowledged_is_delivered_again(make, client, stream):
    add(client, stream, *range(5))
    gathered(make(), 5, size=2)
    assert waiting(client, stream) == 5
    source = make()
    batches = gathered(source, 5, size=2)
    assert users(batches) == list(range(5))
    source.acknowledge(batches[1].offset)
    assert waiting(client, stream) == 1
    # With the checkpoint the fifth is due; the offset says so even to a broker that knows nothing.
    assert users(gathered(make(), 1, after=batches[1].offset)) == [4]


def test_what_is_in_the_checkpoint_is_not_delivered_again(make, client, stream):
    add(client, stream, *range(6))
    first, *_ = gathered(make(), 6, size=4)
    saved = json.loads(json.dumps(first.offset))
    source = make()  # killed between the checkpoint and its acknowledgement
    batches = gathered(source, 2, after=saved)
    assert users(batches) == [4, 5]
    assert waiting(client, stream) == 2
    source.acknowledge(batches[-1].offset)
    assert waiting(client, stream) == 0


def test_a_lost_group_is_made_again_behind_the_checkpoint(make, client, stream):
    add(client, stream, *range(6))
    first, *_ = gathered(make(), 6, size=4)
    client.xgroup_destroy(stream, "celrec")
    assert users(gathered(make(), 2, after=first.offset)) == [4, 5]
    source = make()
    batches = source.batches(10, first.offset)
    next(batches)
    client.xgroup_destroy(stream, "celrec")
    add(client, stream, 6)
    assert users(next(batches) for _ in range(3)) == [6]


def test_what_the_group_takes_for_done_is_read_again_if_the_offset_says_so(make, client, stream):
    add(client, stream, *range(10))
    source = make()
    batches = gathered(source, 10, size=3)
    for batch in batches[:3]:
        source.acknowledge(batch.offset)
    for number, batch in enumerate(batches):  # as if all checkpoints after it were damaged
        source = make()
        rest = gathered(source, 10 - 3 * (number + 1), after=batch.offset) if number < 3 else []
        assert users(rest) == list(range(3 * (number + 1), 10))
    source.acknowledge(batches[-1].offset)
    source = make()
    rest = gathered(source, 7, after=batches[0].offset)
    source.acknowledge(rest[-1].offset)
    assert waiting(client, stream) == 0


def test_reading_again_goes_on_after_the_connection_was_lost(make, redis_stream):
    server, stream = redis_stream
    add(server.client, stream, *range(12))
    source = make()
    first, second, third, *_ = gathered(source, 9, size=3)
    source.acknowledge(second.offset)  # so that 6, 7 and 8 are pending
    source.close()
    source = make()
    batches = source.batches(2, first.offset)
    found = [next(batches)]
    server.kill()
    try:
        found.append(next(batches))
    finally:
        server.start()
    while len(rows(found)) < 9 and len(found) < 100:
        found.append(next(batches))
    assert users(found) == list(range(3, 12))
    source.acknowledge(found[-1].offset)
    assert waiting(server.client, stream) == 0
    assert third.offset["last"] < found[-1].offset["last"]


def test_entries_that_were_trimmed_and_are_due_again_are_reported_in_one_line(make, client, stream):
    add(client, stream, *range(10))
    source = make()
    first, second, *_, last = gathered(source, 10, size=2)
    source.acknowledge(last.offset)
    client.xtrim(stream, maxlen=3, approximate=False)
    batches = gathered(make(), 4, after=first.offset)
    place = f"stream {stream}, after entry {first.offset['last']}"
    assert rejections(batches) == [(place, "5 entries are no longer in the stream")]
    assert users(batches) == [7, 8, 9]
    for batch in batches:  # it is message once
        assert next(make().batches(9, batch.offset)).rejected == ()
    client.xtrim(stream, maxlen=0, approximate=False)
    (message, *_) = gathered(make(), 1, after=second.offset)
    assert message.rejected[0].reason == "6 entries are no longer in the stream"
    add(client, stream, 10)
    assert users(gathered(make(), 1, after=message.offset)) == [10]


def test_entries_that_are_trimmed_when_they_are_learned_are_not_missed(make, client, stream):
    add(client, stream, *range(4))
    client.xtrim(stream, maxlen=3, approximate=False)  # what nobody was to read
    source = make()
    first, *_ = gathered(source, 3, size=2)
    source.acknowledge(first.offset)
    client.xtrim(stream, maxlen=1, approximate=False)
    batches = gathered(make(), 1, after=first.offset)
    assert (users(batches), rejections(batches)) == ([3], [])
    add(client, stream, *range(4, 9))
    source = make(consumer="other")  # without an offset the group is trusted
    batches = gathered(source, 5)
    assert batches[-1].offset["entries"] == 9
    client.xtrim(stream, maxlen=0, approximate=False)
    assert next(make().batches(9, batches[-1].offset)).rejected == ()


def test_a_removed_entry_after_the_offset_is_reported_once(make, client, stream):
    add(client, stream, *range(6))
    first, *_ = gathered(make(), 6, size=2)
    ids = [entry_id for entry_id, _ in client.xrange(stream)]
    client.xdel(stream, ids[3])
    for _ in range(2):  # as long as no checkpoint holds it
        source = make()
        batches = gathered(source, 4, after=first.offset)
        assert users(batches) == [2, 4, 5]
        assert [place.rpartition(" ")[2] for place, _ in rejections(batches)] == [ids[3].decode()]
    source.acknowledge(batches[0].offset)
    assert rejections(gathered(make(), 3, after=first.offset)) == []
    client.xtrim(stream, maxlen=0, approximate=False)
    assert batches[-1].offset["entries"] == 6
    assert next(make().batches(9, batches[-1].offset)).rejected == ()


def test_removed_entries_that_were_pending_are_reported_one_by_one_and_no_more(make, redis_stream):
    server, stream = redis_stream
    client = server.client
    add(client, stream, *range(6))
    first, *_ = gathered(make(), 6, size=2)
    client.xtrim(stream, maxlen=1, approximate=False)
    source = make()
    batches = source.batches(2, first.offset)
    found = [next(batches)]
    server.kill()
    try:
        found.append(next(batches))
    finally:
        server.start()
    while len(rows(found)) < 1 and len(found) < 100:
        found.append(next(batches))
    client = server.client
    assert users(found) == [5]
    assert len(rejections(found)) == 3
    assert {reason for _, reason in rejections(found)} == {
        "the entry was removed from the stream before it was read"
    }
    assert found[-1].offset["entries"] == 6
    source.acknowledge(found[-1].offset)
    assert waiting(client, stream) == 0


def test_single_entries_that_somebody_deleted_are_not_missed(make, client, stream):
    add(client, stream, *range(6))
    source = make()
    first, *_, last = gathered(source, 6, size=1)
    source.acknowledge(last.offset)
    client.xdel(stream, *[entry_id for entry_id, _ in client.xrange(stream)][2:5])
    batches = gathered(make(), 2, after=first.offset)
    assert (users(batches), rejections(batches)) == ([1, 5], [])


def test_a_server_that_does_not_count_is_read_all_the_same(make, client, stream, monkeypatch):
    add(client, stream, *range(4))
    message = type(client).xinfo_stream

    def uncounted(self, name):  # as Redis 6 does
        return {k: v for k, v in message(self, name).items() if k != "entries-added"}

    groups = type(client).xinfo_groups

    def unread(self, name):
        return [{**group, "entries-read": None} for group in groups(self, name)]

    monkeypatch.setattr(type(client), "xinfo_stream", uncounted)
    monkeypatch.setattr(type(client), "xinfo_groups", unread)
    source = make()
    first, last = gathered(source, 4, size=2)
    assert last.offset["entries"] is None
    source.acknowledge(last.offset)
    client.xtrim(stream, maxlen=1, approximate=False)
    batches = gathered(make(), 1, after=first.offset)
    assert (users(batches), rejections(batches)) == ([3], [])


STEPS = st.lists(
    st.sampled_from(["add", "read", "keep", "keep unheard", "crash", "fall back", "lose"]),
    max_size=25,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.integers(1, 4), st.uuids())
def test_whatever_happens_each_entry_is_learned_once(redis_server, steps, size, name):
    """The learned and the offset are kept together, as a run does, and the last two are there."""
    stream, client, added, learned = str(name), redis_server.client, 0, []
    client.delete(stream)  # an example may be tried again
    kept = [([], None)]

    def opened():
        source = RedisSource(redis_server.url, stream, linger=0.005)
        return source, source.batches(size, kept[-1][1])

    source, batches = opened()
    offset = None
    for step in [*steps, "end"]:
        if step == "add":
            add(client, stream, *range(added, added + 3))
            added += 3
        elif step == "read":
            batch = next(batches)
            learned, offset = learned + users([batch]), batch.offset
        elif step.startswith("keep") and offset is not None:
            kept = [*kept[-1:], (learned, offset)]
            if step == "keep":
                source.acknowledge(offset)
        elif step in ("crash", "fall back"):
            source.close()
            if step == "fall back" and len(kept) > 1 and kept[0][1] is not None:
                kept = kept[:1]
            learned, offset = kept[-1]
            source, batches = opened()
        elif step == "lose" and source.reader:  # an answer, and the connection with it
            client.xreadgroup("celrec", "celrec", {stream: ">"}, count=2)
            source.reader.disconnected()
    for number in range(added + 50):
        if not number or len(learned) < added:
            batch = next(batches)
            learned, offset = learned + users([batch]), batch.offset
    assert learned == list(range(added))
    source.acknowledge(offset)
    assert waiting(client, stream) == 0
    source.close()
    client.delete(stream)


def test_entries_of_a_dead_consumer_are_taken_over(make, client, stream):
    add(client, stream, *range(3))
    gathered(make(consumer="gone"), 3)
    ids = [entry["message_id"] for entry in client.xpending_range(stream, "celrec", "-", "+", 9)]
    client.xclaim(stream, "celrec", "gone", 0, ids[:2], idle=61_000)
    assert users(gathered(make(), 2)) == [0, 1]


def test_entries_may_hold_json_and_malformed_ones_are_set_aside(make, client, stream):
    client.xadd(stream, {"status": "up", "x": "y"}, id="1-0")
    client.xadd(stream, {"json": '{"user": 1, "item": "a", "target": 2}'}, id="2-0")
    client.xadd(stream, {"event": '{"user": 2, "item": "b", "target": 3}'}, id="2-1")
    client.xadd(stream, {"json": "{"}, id="3-0")
    client.xadd(stream, {"user": "3", "item": "c"}, id="4-0")
    client.xadd(stream, {"user": b"\xff", "item": "c", "target": "1"}, id="5-0")
    client.xadd(stream, {"user": "5", "item": "c", "target": "nan"}, id="6-0")
    client.xadd(stream, {"user": "6", "item": "c", "target": "4"}, id="7-0")
    batches = gathered(make(), 8)
    assert rows(batches) == [("1", "a", 2.0), ("2", "b", 3.0), ("6", "c", 4.0)]
    assert [(place.rpartition(" ")[2], reason) for place, reason in rejections(batches)][1:] == [
        ("3-0", "not JSON"),
        ("4-0", "no field 'target' (target)"),
        ("5-0", "not UTF-8 text"),
        ("6-0", "target 'nan' is not a finite number"),
    ]
    place, reason = rejections(batches)[0]
    assert place == f"stream {stream}, entry 1-0"
    assert reason.startswith("event: no user column")
    assert batches[-1].rejected[-1].raw == '{"user": "5", "item": "c", "target": "nan"}'


def test_a_removed_entry_that_was_due_is_reported(make, client, stream):
    add(client, stream, *range(3))
    gathered(make(), 3)
    client.xtrim(stream, maxlen=2, approximate=False)
    batches = gathered(make(), 3)
    assert users(batches) == [1, 2]
    assert rejections(batches)[0][1].startswith("the entry was removed from the stream")


def test_nothing_comes_regularly_and_something_promptly(make, client, stream):
    batches = make(linger=0.1).batches(100)
    started = time.monotonic()
    assert len(next(batches).frame) == 0
    add(client, stream, 1)
    assert users([next(batches)]) == [1]
    assert time.monotonic() - started < 5


def test_a_server_that_is_killed_and_restarted_is_read_on(make, redis_stream):
    server, stream = redis_stream
    add(server.client, stream, *range(5))
    source = make(linger=0.1)
    batches = source.batches(3)
    found = [next(batches)]
    server.kill()
    try:
        assert len(next(batches).frame) == 0  # the caller hears of it that time goes by
        assert len(next(batches).frame) == 0
    finally:
        server.start()
    add(server.client, stream, 5, 6)
    while len(rows(found)) < 7:
        found.append(next(batches))
    assert users(found) == list(range(7))
    source.acknowledge(found[-1].offset)
    assert waiting(server.client, stream) == 0


class Relay:
    """Stands between a client and the server, and can lose an answer and break the connection."""

    def __init__(self, port):
        self._port, self.lose = port, False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, socket.create_connection(("127.0.0.1", self._port)) as server:
                self._pass_on(client, server)

    def _pass_on(self, client, server):
        while True:
            for ready in select.select([client, server], [], [])[0]:
                data = ready.recv(1 << 16)
                if ready is server and self.lose and b"item" in data:
                    self.lose = False
                    return
                if not data:
                    return
                (server if ready is client else client).sendall(data)

    def close(self):
        self._listener.close()


def test_an_answer_that_was_lost_on_its_way_is_not_lost(redis_stream):
    server, stream = redis_stream
    relay = Relay(server.port)
    source = RedisSource(f"redis://127.0.0.1:{relay.port}/0", stream, linger=0.05)
    batches = source.batches(10)
    found = [next(batches)]
    relay.lose = True
    add(server.client, stream, 1, 2)
    found.append(next(batches))
    assert not relay.lose
    assert users(found) == []
    add(server.client, stream, 3)
    found += [next(batches) for _ in range(6)]
    assert users(found) == [1, 2, 3]
    source.close()
    relay.close()


def test_patience_with_a_server_that_stays_away_ends(make, redis_stream):
    server, stream = redis_stream
    source = make(patience=0.3)
    batches = source.batches(3)
    add(server.client, stream, 1)
    offset = next(batches).offset
    server.kill()
    try:
        with pytest.raises(
            CelrecError, match=r"unreachable for 0\.3 seconds .* then resume the run"
        ):
            for _ in range(100):
                next(batches)
        with pytest.raises(CelrecError, match=r"unreachable for 0\.3 seconds"):
            source.acknowledge(offset)
    finally:
        server.start()


PROGRAM = """
import json, sys
from celrec.streams.redis_source import RedisSource
source = RedisSource(sys.argv[1], sys.argv[2], linger=0.05)
for batch in source.batches(2, json.loads(sys.argv[3])):
    print(json.dumps([batch.frame["user"].to_list(), batch.offset]), flush=True)
"""


def test_a_killed_process_loses_nothing(redis_stream, make):
    server, stream = redis_stream
    add(server.client, stream, *range(7))
    command = [sys.executable, "-c", PROGRAM, server.url, stream, "null"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        first = json.loads(process.stdout.readline())
        json.loads(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
    rest = gathered(make(), 5, size=2, after=first[1])
    assert [int(user) for user in first[0]] + users(rest) == list(range(7))


def test_credentials_are_never_shown(redis_stream, closed_port):
    server, stream = redis_stream
    for url in (
        f"redis://tom:s3cret@127.0.0.1:{closed_port}/0",
        f"redis://tom:s3cret@127.0.0.1:{server.port}/0",
        "redis://tom:s3cret/x@127.0.0.1/0",
        f"redis://tom:s3cret@127.0.0.1:{server.port}/0?nonsense=1",
    ):
        with pytest.raises(CelrecError) as caught:
            next(RedisSource(url, stream, linger=0.05).batches(1))
        assert "s3cret" not in str(caught.value)
        assert caught.value.__suppress_context__
    assert "s3cret" not in str(RedisSource("redis://tom:s3cret@h:1/0", "x"))


def test_mistakes_are_reported(make, client, stream, closed_port, monkeypatch):
    with pytest.raises(CelrecError, match=r"cannot connect .* fix the address"):
        next(RedisSource(f"redis://127.0.0.1:{closed_port}", "x").batches(1))
    client.set(stream, "no stream")
    with pytest.raises(CelrecError, match="WRONGTYPE"):
        next(make().batches(1))
    with pytest.raises(CelrecError, match="another source before, with stream 'y'"):
        next(make().batches(1, {"source": "redis", "stream": "y"}))
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(CelrecError, match=r"pip install 'celrec\[stream\]'"):
        make()


def test_entries_added_while_reading_arrive_in_order(make, client, stream):
    thread = threading.Thread(target=add, args=(client, stream, *range(300)))
    thread.start()
    batches = gathered(make(), 300, size=7)
    thread.join()
    assert users(batches) == list(range(300))
