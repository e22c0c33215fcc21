"""Events from a Kafka topic."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from celrec.data.columns import Columns
from celrec.errors import CelrecError
from celrec.streams.broker import BrokerUnavailable, Outage
from celrec.streams.events import Events, EventSource, Offset, Rejected, no_events
from celrec.streams.fields import json_objects
from celrec.streams.object_intake import ObjectIntake

_ANSWER = 10.0  # seconds that a broker may take to answer
_TRIES, _BETWEEN = 10, 0.2  # times and seconds, for a coordinator to be there
_MOST = 1_000_000  # messages that the client takes at once
_SECRETS = ("password", "secret", "pem")


@dataclass(frozen=True, slots=True)
class Message:
    """A message, and where it stands."""

    partition: int
    offset: int
    value: bytes | None


class KafkaTopic:
    """What a source needs of a topic; failures become `BrokerUnavailable` or CelrecError."""

    def __init__(self, servers: str, topic: str, group: str, settings: Mapping[str, str]) -> None:
        try:
            import confluent_kafka
        except ImportError as error:
            raise CelrecError(
                "reading Kafka topics needs confluent-kafka: pip install 'celrec[stream]'"
            ) from error
        if "@" in servers:
            raise CelrecError(
                "servers: no user or password in it; give them as settings "
                "(sasl.username, sasl.password, security.protocol)"
            )
        self._kafka: Any = confluent_kafka
        self._secrets = [v for k, v in settings.items() if v and any(s in k for s in _SECRETS)]
        self._topic, self._name = topic, f"topic {topic!r} of Kafka at {servers}"
        self._doubt = ""
        with self._answering():
            self._consumer: Any = confluent_kafka.Consumer(
                {
                    "socket.timeout.ms": int(1000 * _ANSWER),
                    "session.timeout.ms": int(1000 * _ANSWER),  # here: how long a commit may take
                    "log_level": 0,  # what matters of it becomes an error
                    **settings,
                    "bootstrap.servers": servers,
                    "group.id": group,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "earliest",
                    "error_cb": self._note,
                }
            )

    def __str__(self) -> str:
        return self._name

    def begin(self, known: Mapping[int, int]) -> tuple[dict[int, int], tuple[Rejected, ...]]:
        """Read on at the offsets `known`, else at those committed, else at the beginning.

        The offset in every partition, and which messages are gone that should have been read.
        """
        with self._answering():
            topic = self._consumer.list_topics(self._topic, timeout=_ANSWER).topics[self._topic]
            if topic.error is not None:
                raise CelrecError(f"{self}: {topic.error.str()}; create the topic, or correct it")
            everywhere = [self._kafka.TopicPartition(self._topic, p) for p in topic.partitions]
            committed = self._committed(everywhere)
            ranges = {
                place.partition: self._consumer.get_watermark_offsets(place, timeout=_ANSWER)
                for place in everywhere
            }
        positions, gone = {}, []
        for partition in {**ranges, **known}:
            low, high = ranges.get(partition, (0, -1))
            position = {**committed, **known}.get(partition, low)
            if position > high:
                raise CelrecError(
                    f"{self}: partition {partition} was read up to offset {position} and now ends "
                    f"at {max(high, 0)}; if the topic was made anew, start a new run"
                )
            if position < low:
                place = f"topic {self._topic}, partition {partition}, offsets {position}–{low - 1}"
                gone.append(Rejected(place, "", "the topic no longer keeps these messages"))
            positions[partition] = max(position, low)
        with self._answering():
            self._consumer.assign(self._places(positions))
        return positions, tuple(gone)

    def _committed(self, places: list[Any]) -> dict[int, int]:
        """Where the group reads on, for partitions of which it has committed anything.

        A coordinator that is just being chosen answers with errors, for a short time.
        """
        for _ in range(_TRIES):
            found = self._consumer.committed(places, timeout=_ANSWER)
            errors = [place.error for place in found if place.error is not None]
            if not errors:
                return {place.partition: place.offset for place in found if place.offset >= 0}
            time.sleep(_BETWEEN)
        raise self._kafka.KafkaException(errors[0])

    def read(self, count: int, seconds: float) -> list[Message]:
        """What comes within some seconds."""
        good = []
        with self._answering():
            for message in self._consumer.consume(min(count, _MOST), timeout=seconds):
                if (error := message.error()) is None:
                    good.append(Message(message.partition(), message.offset(), message.value()))
                elif self._passing(error):  # must not cost the messages beside it
                    self._note(error)
                else:
                    raise self._kafka.KafkaException(error)
            if not good and self._doubt:  # the client mends connections by itself: has it?
                self._consumer.list_topics(self._topic, timeout=seconds)
            self._doubt = ""
        return good

    def commit(self, positions: Mapping[int, int]) -> None:
        """Tell the brokers where this group reads on, and wait for the answer."""
        with self._answering():
            for place in self._consumer.commit(offsets=self._places(positions), asynchronous=False):
                if place.error is not None:
                    raise self._kafka.KafkaException(place.error)

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()

    def _places(self, positions: Mapping[int, int]) -> list[Any]:
        return [
            self._kafka.TopicPartition(self._topic, partition, offset)
            for partition, offset in positions.items()
        ]

    def _note(self, error: Any) -> None:
        self._doubt = error.str()

    def _passing(self, error: Any) -> bool:
        kafka = self._kafka.KafkaError
        unreachable = (kafka._TRANSPORT, kafka._TIMED_OUT, kafka._ALL_BROKERS_DOWN, kafka._RESOLVE)
        return error.retriable() or error.code() in (*unreachable, kafka._WAIT_COORD)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except self._kafka.KafkaException as failure:
            error = failure.args[0]
            text = self._doubt if self._doubt and self._passing(error) else error.str()
            for secret in self._secrets:
                text = text.replace(secret, "…")
            if self._passing(error):
                raise BrokerUnavailable(text) from None
            raise CelrecError(f"{self}: {text}") from None


class KafkaSource(EventSource):
    """The messages of all partitions of a Kafka topic, each a JSON object; never ends.

    Within a partition the events are in order; between partitions there is none.
    The source assigns the partitions itself, so no two runs read with one
    group, and partitions that are added later are read after a restart. It begins
    where the offset says, else where the group has committed, else at the oldest message.

    A first connection that fails is an error; one that is lost later is tried
    again for `patience` seconds. `settings` are passed on to librdkafka, such as
    those for TLS and passwords. Needs `pip install 'celrec[stream]'`.
    """

    kind = "kafka"

    def __init__(
        self,
        servers: str,
        topic: str,
        roles: Columns | None = None,
        *,
        group: str = "celrec",
        linger: float = 1.0,
        patience: float = 60.0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._roles, self._linger, self._topic_name = roles or Columns(), linger, topic
        self._topic = KafkaTopic(servers, topic, group, settings or {})
        self._outage = Outage(str(self), patience)

    def __str__(self) -> str:
        return str(self._topic)

    def batches(self, size: int, after: Offset | None = None) -> Iterator[Events]:
        """See `EventSource`."""
        offset = self._begin(size, after, topic=self._topic_name)
        intake = ObjectIntake(self._roles, offset)
        positions, gone = self._start(offset)
        if gone:
            yield Events(no_events(), self._place(positions, intake), gone)
        while True:
            messages = [m for m in self._gather(size) if m.offset >= positions[m.partition]]
            positions |= {message.partition: message.offset + 1 for message in messages}
            events, problems = json_objects([message.value or b"" for message in messages])
            problems |= {
                row: "the message is empty"
                for row, message in enumerate(messages)
                if not message.value
            }
            taken = intake.take(events, problems, partial(self._locate, messages))
            self._lateness.add(taken.frame)
            yield Events(taken.frame, self._place(positions, intake), taken.rejected)

    def acknowledge(self, offset: Offset) -> None:
        """See `EventSource`."""
        positions = {int(partition): place for partition, place in offset["partitions"].items()}
        while True:
            try:
                return self._topic.commit(positions)
            except BrokerUnavailable as away:
                time.sleep(self._outage.failed(str(away)))

    def close(self) -> None:
        """See `EventSource`."""
        self._topic.close()

    def _start(self, offset: Offset) -> tuple[dict[int, int], tuple[Rejected, ...]]:
        known = {int(number): place for number, place in offset.get("partitions", {}).items()}
        try:
            return self._topic.begin(known)
        except BrokerUnavailable as away:
            raise CelrecError(
                f"{self}: cannot connect ({away}); start it, or correct the address"
            ) from None

    def _gather(self, size: int) -> list[Message]:
        """What comes within the time to linger."""
        try:
            messages = self._topic.read(size, self._linger)
        except BrokerUnavailable as away:
            time.sleep(min(self._outage.failed(str(away)), self._linger))
            return []
        self._outage.over()
        return messages

    def _place(self, positions: Mapping[int, int], intake: ObjectIntake) -> Offset:
        partitions = {str(partition): place for partition, place in positions.items()}
        where = {"topic": self._topic_name, "partitions": partitions, **intake.state()}
        return self._offset(where)

    def _locate(self, messages: Sequence[Message], row: int) -> tuple[str, str]:
        message = messages[row]
        place = f"topic {self._topic_name}, partition {message.partition}, offset {message.offset}"
        return place, (message.value or b"").decode(errors="replace")
