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
from celrec.streams.events import (
    BrokerUnavailable,
    Events,
    EventSource,
    Offset,
    Outage,
    Rejected,
    connected,
    no_events,
)
from celrec.streams.fields import json_objects
from celrec.streams.object_intake import ObjectIntake

TIMEOUT = 10.0  # seconds for a broker to answer
_TRIES, _BETWEEN = 10, 0.2  # attempts, and seconds between them, to reach a coordinator
_MOST = 1_000_000  # messages per call of the client
_SECRETS = ("password", "secret", "pem")


@dataclass(frozen=True, slots=True)
class Message:
    """A message and its position."""

    partition: int
    offset: int
    value: bytes | None


class KafkaTopic:
    """A consumer of a topic; failures become `BrokerUnavailable` or CelrecError."""

    def __init__(self, servers: str, topic: str, group: str, settings: Mapping[str, str]) -> None:
        try:
            import confluent_kafka
        except ImportError as error:
            raise CelrecError(
                "reading Kafka topics needs confluent-kafka: pip install 'celrec[stream]'"
            ) from error
        if "@" in servers:
            raise CelrecError(
                "servers: must not contain user and password; pass them as settings "
                "(sasl.username, sasl.password, security.protocol)"
            )
        self._kafka: Any = confluent_kafka
        self._secrets = [v for k, v in settings.items() if v and any(s in k for s in _SECRETS)]
        self._topic, self._name = topic, f"topic {topic!r} of Kafka at {servers}"
        self._doubt = ""
        with self._translated_errors():
            self.consumer: Any = confluent_kafka.Consumer(
                {
                    "socket.timeout.ms": int(1000 * TIMEOUT),
                    "session.timeout.ms": int(1000 * TIMEOUT),  # the timeout of commits
                    "log_level": 0,  # errors are raised instead
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
        """Start at the offsets `known`, else at the committed ones, else at the oldest message.

        Returns the offset in every partition, and the unread messages that the topic has deleted.
        """
        with self._translated_errors():
            topic = self.consumer.list_topics(self._topic, timeout=TIMEOUT).topics[self._topic]
            if topic.error is not None:
                raise CelrecError(f"{self}: {topic.error.str()}; create the topic, or fix its name")
            everywhere = [self._kafka.TopicPartition(self._topic, p) for p in topic.partitions]
            committed = self._committed(everywhere)
            ranges = {
                place.partition: self.consumer.get_watermark_offsets(place, timeout=TIMEOUT)
                for place in everywhere
            }
        positions, deleted = {}, []
        for partition in {**ranges, **known}:
            low, high = ranges.get(partition, (0, -1))
            position = {**committed, **known}.get(partition, low)
            if position > high:
                raise CelrecError(
                    f"{self}: partition {partition} was read up to offset {position} and now ends "
                    f"at {max(high, 0)}; if the topic was recreated, start a new run"
                )
            if position < low:
                place = f"topic {self._topic}, partition {partition}, offsets {position}–{low - 1}"
                deleted.append(Rejected(place, "", "the topic has deleted these messages"))
            positions[partition] = max(position, low)
        with self._translated_errors():
            self.consumer.assign(self._places(positions))
        return positions, tuple(deleted)

    def _committed(self, places: list[Any]) -> dict[int, int]:
        """The group's committed offsets, by partition.

        While a coordinator is being elected, it answers with errors.
        """
        for _ in range(_TRIES):
            found = self.consumer.committed(places, timeout=TIMEOUT)
            errors = [place.error for place in found if place.error is not None]
            if not errors:
                return {place.partition: place.offset for place in found if place.offset >= 0}
            time.sleep(_BETWEEN)
        raise self._kafka.KafkaException(errors[0])

    def read(self, count: int, seconds: float) -> list[Message]:
        """Up to `count` messages that arrive within some seconds."""
        good = []
        with self._translated_errors():
            for message in self.consumer.consume(min(count, _MOST), timeout=seconds):
                if (error := message.error()) is None:
                    good.append(Message(message.partition(), message.offset(), message.value()))
                elif self._temporary(error):  # keep the other messages
                    self._note(error)
                else:
                    raise self._kafka.KafkaException(error)
            if not good and self._doubt:  # check whether the client has reconnected
                self.consumer.list_topics(self._topic, timeout=seconds)
            self._doubt = ""
        return good

    def commit(self, positions: Mapping[int, int]) -> None:
        """Commit the offsets of the group, and wait for the answer."""
        with self._translated_errors():
            for place in self.consumer.commit(offsets=self._places(positions), asynchronous=False):
                if place.error is not None:
                    raise self._kafka.KafkaException(place.error)

    def close(self) -> None:
        """Close the connections."""
        self.consumer.close()

    def _places(self, positions: Mapping[int, int]) -> list[Any]:
        return [
            self._kafka.TopicPartition(self._topic, partition, offset)
            for partition, offset in positions.items()
        ]

    def _note(self, error: Any) -> None:
        self._doubt = error.str()

    def _temporary(self, error: Any) -> bool:
        kafka = self._kafka.KafkaError
        unreachable = (kafka._TRANSPORT, kafka._TIMED_OUT, kafka._ALL_BROKERS_DOWN, kafka._RESOLVE)
        return error.retriable() or error.code() in (*unreachable, kafka._WAIT_COORD)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except self._kafka.KafkaException as failure:
            error = failure.args[0]
            text = self._doubt if self._doubt and self._temporary(error) else error.str()
            for secret in self._secrets:
                text = text.replace(secret, "…")
            if self._temporary(error):
                raise BrokerUnavailable(text) from None
            raise CelrecError(f"{self}: {text}") from None


class KafkaSource(EventSource):
    """The messages of all partitions of a Kafka topic, each a JSON object; never ends.

    Events are in order within each partition, not across partitions. The source assigns the
    partitions itself, so each run needs its own group, and new partitions are read after a
    restart. Reading starts at the offset, else at the group's committed offsets, else at the
    oldest message.

    A failure of the first connection is an error; a lost connection is retried for `patience`
    seconds. `settings` are passed to librdkafka, for example for TLS and passwords. Needs
    `pip install 'celrec[stream]'`.
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
        self.topic = KafkaTopic(servers, topic, group, settings or {})
        self._outage = Outage(str(self), patience)

    def __str__(self) -> str:
        return str(self.topic)

    def batches(self, size: int, after: Offset | None = None) -> Iterator[Events]:
        """The events after an offset; never ends."""
        offset = self._begin(size, after, topic=self._topic_name)
        intake = ObjectIntake(self._roles, offset)
        known = {int(number): place for number, place in offset.get("partitions", {}).items()}
        positions, deleted = connected(self, lambda: self.topic.begin(known))
        if deleted:
            yield Events(no_events(), self._place(positions, intake), deleted)
        while True:
            messages = [m for m in self._gather(size) if m.offset >= positions[m.partition]]
            positions |= {message.partition: message.offset + 1 for message in messages}
            events, problems = json_objects([message.value or b"" for message in messages])
            problems |= {
                row: "the message is empty"
                for row, message in enumerate(messages)
                if not message.value
            }
            parsed = intake.take(events, problems, partial(self._locate, messages))
            self._lateness.add(parsed.frame)
            yield Events(parsed.frame, self._place(positions, intake), parsed.rejected)

    def acknowledge(self, offset: Offset) -> None:
        """Commit the offsets of saved events."""
        positions = {int(partition): place for partition, place in offset["partitions"].items()}
        self._outage.retried(lambda: self.topic.commit(positions))

    def close(self) -> None:
        self.topic.close()

    def _gather(self, size: int) -> list[Message]:
        try:
            messages = self.topic.read(size, self._linger)
        except BrokerUnavailable as error:
            time.sleep(min(self._outage.failed(str(error)), self._linger))
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
