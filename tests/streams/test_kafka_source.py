import json
import os
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest

from celrec.errors import CelrecError
from celrec.streams.kafka_source import KafkaSource
from tests.streams.conftest import KafkaCluster
from tests.streams.events_checks import gathered, rejections, rows


def event(user):
    return json.dumps({"user": user, "item": "a", "rating": 1, "ts": user}).encode()


def users(batches):
    return [row[0] for row in rows(batches)]


def carrying(batches):
    """Those with events: what lingers on its way comes in a later batch, or in two."""
    return [batch for batch in batches if len(batch.frame)]


@pytest.fixture
def make(kafka_topic):
    """A function that makes sources, which are closed at the end."""
    cluster, topic = kafka_topic
    made = []

    def source(**options):
        made.append(KafkaSource(cluster.servers, topic, **{"linger": 0.1, **options}))
        return made[-1]

    yield source
    for one in made:
        one.close()


def test_all_partitions_are_read_each_in_order(make, kafka_topic):
    cluster, topic = kafka_topic
    cluster.send(topic, *map(event, range(20)))
    source = make()
    batches = gathered(source, 20, size=6)
    found = users(batches)
    assert sorted(found) == list(range(20))
    for partition in range(4):
        part = [user for user in found if user % 4 == partition]
        assert part == sorted(part)
    assert batches[-1].offset["partitions"] == {"0": 5, "1": 5, "2": 5, "3": 5}
    assert max(len(batch.frame) for batch in batches) <= 6
    assert topic in str(source)


def test_reading_goes_on_after_any_batch(make, kafka_topic):
    cluster, topic = kafka_topic
    cluster.send(topic, *map(event, range(12)))
    batches = gathered(make(), 12, size=5)
    seen = []
    for batch in batches[:-1]:
        seen += users([batch])
        rest = gathered(make(), 12 - len(seen), size=5, after=json.loads(json.dumps(batch.offset)))
        assert sorted(seen + users(rest)) == list(range(12))


def test_what_was_not_acknowledged_is_delivered_again(make, kafka_topic):
    cluster, topic = kafka_topic
    cluster.send(topic, *map(event, range(8)), partition=1)
    gathered(make(), 8, size=3)
    source = make()  # no checkpoint, nothing committed
    batches = gathered(source, 8, size=3)
    assert users(batches) == list(range(8))
    first, second, *_ = carrying(batches)
    source.acknowledge(first.offset)
    rest = list(range(8))[len(first.frame) :]
    assert users(gathered(make(), len(rest))) == rest  # as committed
    rest = rest[len(second.frame) :]  # the offset knows better
    assert users(gathered(make(), len(rest), after=second.offset)) == rest
    assert users(gathered(make(group="other"), 8)) == list(range(8))


def test_malformed_messages_are_set_aside(make, kafka_topic):
    cluster, topic = kafka_topic
    values = [event(1), b"{", b"\xff", b"[]", None, b'{"user": 2}', event("x"), event(2**64)]
    cluster.send(topic, *values, partition=2)
    batches = gathered(make(), 8)
    assert rejections(batches) == [
        (f"topic {topic}, partition 2, offset 1", "not JSON"),
        (f"topic {topic}, partition 2, offset 2", "not UTF-8 text"),
        (f"topic {topic}, partition 2, offset 3", "JSON, but not an object"),
        (f"topic {topic}, partition 2, offset 4", "the message is empty"),
        (f"topic {topic}, partition 2, offset 5", "no field 'item' (item)"),
        (f"topic {topic}, partition 2, offset 6", "timestamp 'x' is not a number"),
        (
            f"topic {topic}, partition 2, offset 7",
            "timestamp '18446744073709551616' is not a number",
        ),
    ]
    assert rows(batches) == [("1", "a", 1.0, 1)]
    assert next(batch for batch in batches if batch.rejected).rejected[0].raw == "{"


def test_nothing_comes_regularly_and_something_promptly(make, kafka_topic):
    cluster, topic = kafka_topic
    batches = make(linger=0.2).batches(100)
    started = time.monotonic()
    assert len(next(batches).frame) == 0
    cluster.send(topic, event(1))
    while not users([next(batches)]):
        assert time.monotonic() - started < 5


def test_a_topic_that_was_made_anew_is_refused(make, kafka_topic):
    cluster, topic = kafka_topic
    cluster.send(topic, event(1), partition=0)
    (*_, batch) = gathered(make(), 1)
    for partitions in ({"0": 5}, {"0": 1, "7": 3}):
        with pytest.raises(CelrecError, match="if the topic was recreated, start a new run"):
            next(make().batches(1, {**batch.offset, "partitions": partitions}))


class Altered:
    """A consumer some of whose answers are others."""

    def __init__(self, consumer, **answers):
        self._consumer, self._answers = consumer, answers

    def __getattr__(self, name):
        return self._answers.get(name) or getattr(self._consumer, name)


def test_messages_that_the_topic_no_longer_keeps_are_reported(make, kafka_topic):
    cluster, topic = kafka_topic
    cluster.send(topic, *map(event, range(6)), partition=0)
    first = next(batch for batch in gathered(make(), 6, size=2) if len(batch.frame) == 2)
    source = make()

    def ranges(place, **_):
        return (4, 6) if place.partition == 0 else (0, 0)

    source.topic.consumer = Altered(source.topic.consumer, get_watermark_offsets=ranges)
    batches = gathered(source, 3, after=first.offset)
    place = f"topic {topic}, partition 0, offsets 2–3"
    assert rejections(batches) == [(place, "the topic has deleted these messages")]
    assert users(batches) == [4, 5]


def test_an_error_that_passes_costs_no_messages(make, kafka_topic):
    from confluent_kafka import KafkaError, Message

    cluster, topic = kafka_topic
    cluster.send(topic, event(1), event(2))
    source = make()
    real = source.topic.consumer
    passing = Message(error=KafkaError(KafkaError._TRANSPORT))
    source.topic.consumer = Altered(
        real, consume=lambda *args, **options: [*real.consume(*args, **options), passing]
    )
    assert sorted(users(gathered(source, 2))) == [1, 2]
    lasting = Message(error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    source.topic.consumer = Altered(real, consume=lambda *_, **__: [lasting])
    with pytest.raises(CelrecError, match="Topic authorization failed"):
        gathered(source, 1)


PROGRAM = """
import json, sys
from celrec.streams.kafka_source import KafkaSource
source = KafkaSource(sys.argv[1], sys.argv[2], linger=0.1)
for batch in source.batches(2):
    if len(batch.frame):
        print(json.dumps([batch.frame["user"].to_list(), batch.offset]), flush=True)
"""


def test_a_killed_process_loses_nothing(make, kafka_topic):
    cluster, topic = kafka_topic
    cluster.send(topic, *map(event, range(7)))
    command = [sys.executable, "-c", PROGRAM, cluster.servers, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        first = json.loads(process.stdout.readline())
        json.loads(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
    rest = gathered(make(), 7 - len(first[0]), size=2, after=first[1])
    assert sorted(first[0] + users(rest)) == list(range(7))


def test_patience_with_brokers_that_stay_away_ends():
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    cluster = KafkaCluster()
    cluster.create("t")
    cluster.send("t", event(1))
    short = {"session.timeout.ms": "300", "heartbeat.interval.ms": "100"}
    source = KafkaSource(cluster.servers, "t", linger=0.2, patience=0.5, settings=short)
    batches = source.batches(3)
    offset = next(batches).offset
    del cluster  # and its broker with it
    with pytest.raises(CelrecError, match=r"unreachable for 0\.5 seconds .* then resume the run"):
        for _ in range(100):
            next(batches)
    with pytest.raises(CelrecError, match=r"unreachable for 0\.5 seconds"):
        source.acknowledge(offset)
    source.close()


HOST = """
import sys
from tests.streams.conftest import KafkaCluster
cluster = KafkaCluster()
cluster.create("t")
print(cluster.servers, flush=True)
for line in sys.stdin.buffer:
    cluster.send("t", line)
    print("sent", flush=True)
"""


def test_brokers_that_fall_silent_and_come_back_are_read_on():
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOST], **pipes) as host:

        def send(user):
            host.stdin.write(event(user) + b"\n")
            host.stdin.flush()

        source = KafkaSource(
            host.stdout.readline().decode().strip(),
            "t",
            linger=0.1,
            settings={"socket.timeout.ms": "1000", "fetch.wait.max.ms": "100"},
        )
        batches = source.batches(10)
        send(1)
        found = [next(batches) for _ in range(5)]
        host.send_signal(signal.SIGSTOP)
        found += [next(batches) for _ in range(12)]
        host.send_signal(signal.SIGCONT)
        send(2)
        while len(rows(found)) < 2 and len(found) < 100:
            found.append(next(batches))
        assert users(found) == [1, 2]
        source.close()
        host.kill()


def test_mistakes_are_reported_and_credentials_never_shown(kafka_topic, closed_port, monkeypatch):
    cluster, topic = kafka_topic
    with pytest.raises(CelrecError, match="Unknown topic or partition; create the topic"):
        next(KafkaSource(cluster.servers, "no-such-topic").batches(1))
    with pytest.raises(CelrecError, match="another source before, with topic 'y'"):
        next(KafkaSource(cluster.servers, topic).batches(1, {"source": "kafka", "topic": "y"}))
    with pytest.raises(CelrecError, match="No such configuration property"):
        KafkaSource(cluster.servers, topic, settings={"nonsense": "1"})
    with pytest.raises(CelrecError, match="must not contain user and password") as caught:
        KafkaSource("tom:s3cret@host:9092", topic)
    assert "s3cret" not in str(caught.value)
    monkeypatch.setattr("celrec.streams.kafka_source.TIMEOUT", 0.5)
    with pytest.raises(CelrecError, match="cannot connect"):
        next(KafkaSource(f"127.0.0.1:{closed_port}", topic).batches(1))
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(CelrecError, match=r"pip install 'celrec\[stream\]'"):
        KafkaSource(cluster.servers, topic)


def test_a_missing_coordinator_is_retried(make, kafka_topic, monkeypatch):
    from confluent_kafka import KafkaError

    cluster, topic = kafka_topic
    cluster.send(topic, *map(event, range(4)), partition=1)
    source = make()
    first, *_ = carrying(gathered(source, 4, size=2))
    source.acknowledge(first.offset)
    again = make()
    consumer, answers = again.topic.consumer, [KafkaError._WAIT_COORD] * 2

    class Slow:
        def __getattr__(self, name):
            return getattr(consumer, name)

        def committed(self, places, timeout):
            found = consumer.committed(places, timeout=timeout)
            if not answers:
                return found
            problem = KafkaError(answers.pop())
            return [Failed(place.partition, problem) for place in found]

    monkeypatch.setattr(again.topic, "consumer", Slow())
    rest = list(range(4))[len(first.frame) :]
    assert users(gathered(again, len(rest))) == rest
    assert answers == []


class Failed(NamedTuple):
    """A place that nothing is known of."""

    partition: int
    error: object
    offset: int = -1001
