"""Events from a Kafka topic."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from celrec.data.columns import Columns
from celrec.data.streams._away import Away
from celrec.data.streams._json_values import json_objects
from celrec.data.streams._kafka_topic import KafkaTopic, Message
from celrec.data.streams._object_intake import ObjectIntake
from celrec.data.streams._outage import Outage
from celrec.data.streams.event_source import EventSource
from celrec.data.streams.events import Events, Offset, no_events
from celrec.data.streams.rejected import Rejected
from celrec.errors import CelrecError


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
            except Away as away:
                time.sleep(self._outage.failed(str(away)))

    def close(self) -> None:
        """See `EventSource`."""
        self._topic.close()

    def _start(self, offset: Offset) -> tuple[dict[int, int], tuple[Rejected, ...]]:
        known = {int(number): place for number, place in offset.get("partitions", {}).items()}
        try:
            return self._topic.begin(known)
        except Away as away:
            raise CelrecError(
                f"{self}: cannot connect ({away}); start it, or correct the address"
            ) from None

    def _gather(self, size: int) -> list[Message]:
        """What comes within the time to linger."""
        try:
            messages = self._topic.read(size, self._linger)
        except Away as away:
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
