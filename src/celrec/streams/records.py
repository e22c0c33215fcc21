"""Splitting text into records: lines, or rows of delimited text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from celrec.errors import CelrecError
from celrec.runtime.jit import Bytes, Ints, compiled

LONGEST_LINE = 16 << 20
"""The maximal length of a line in bytes."""

_LONGEST_QUOTED = 1 << 20  # a quote that is open for longer does not join lines
_QUOTE, _NEWLINE, _RETURN, _SPACE = (ord(character) for character in '"\n\r ')


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records without their line breaks; blank lines are skipped."""

    data: bytes
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    lines: NDArray[np.int64]
    """The line number of each record in the text."""

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, first: int, last: int) -> Records:
        """The records `first` … `last` − 1."""
        return Records(
            self.data, self.starts[first:last], self.ends[first:last], self.lines[first:last]
        )

    def raw(self, number: int) -> bytes:
        """The text of a record."""
        return self.data[self.starts[number] : self.ends[number]]

    def values(self) -> list[bytes]:
        """The texts of all records."""
        spans = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [self.data[start:end] for start, end in spans]

    @classmethod
    def joined(cls, parts: Sequence[Records]) -> Records:
        """Concatenate parts, each of at least one record."""
        if len(parts) == 1:
            return parts[0]
        pieces = [part.data[part.starts[0] : part.ends[-1]] for part in parts]
        before = np.cumsum([0, *(len(piece) for piece in pieces)])
        shifts = [
            shift - part.starts[0] for shift, part in zip(before.tolist(), parts, strict=False)
        ]
        return cls(
            b"".join(pieces),
            np.concatenate([p.starts + by for p, by in zip(parts, shifts, strict=True)]),
            np.concatenate([p.ends + by for p, by in zip(parts, shifts, strict=True)]),
            np.concatenate([part.lines for part in parts]),
        )


class RecordSplitter:
    r"""Splits text that arrives in chunks into records.

    With a `separator` of one character, a line break between double quotes does not end a record.
    A quote opens only at the start of a field and closes only at the end of one. An unclosed
    quote invalidates its own line only. The records do not depend on the chunks.

    >>> splitter = RecordSplitter("t", b",")
    >>> splitter.feed(b'a,1\r\n\nb,"2').values(), splitter.feed(b'\n2"\nc').values()
    ([b'a,1'], [b'b,"2\n2"'])
    >>> rest = splitter.finish()
    >>> rest.values(), rest.lines.tolist()
    ([b'c'], [5])
    """

    def __init__(self, name: str, separator: bytes | None) -> None:
        self._name = name
        self._separator = -1 if separator is None else ord(separator)
        self._rest = b""
        self._line = 1

    def feed(self, data: bytes) -> Records:
        """The records that `data` completes."""
        return self._cut(self._rest + data, final=False)

    def finish(self) -> Records:
        """The remaining records at the end of the text."""
        return self._cut(self._rest, final=True)

    def _cut(self, data: bytes, final: bool) -> Records:
        most = data.count(b"\n") + 1
        starts, ends, lines = (np.empty(most, np.int64) for _ in range(3))
        count, done, passed = _split(
            np.frombuffer(data, np.uint8), self._separator, final, starts, ends, lines
        )
        records = Records(data, starts[:count], ends[:count], lines[:count] + self._line)
        self._rest = data[done:]
        self._line += passed
        if len(self._rest) > LONGEST_LINE:
            raise CelrecError(
                f"{self._name}, line {self._line}: a line of over {LONGEST_LINE >> 20} MiB; "
                "write one event per line"
            )
        return records


@compiled
def _split(
    data: Bytes, separator: int, final: bool, starts: Ints, ends: Ints, lines: Ints
) -> tuple[int, int, int]:
    """Write the bounds of complete records; return their number, and the end of the last one.

    The third result is the number of lines before that end.
    """
    count = record = line = breaks = place = 0
    first_break = -1
    in_quotes, may_open, hopeless = False, separator >= 0, False
    while True:
        at_end = place == len(data)
        if at_end and not final:
            break
        hopeless = hopeless or (in_quotes and (at_end or place - record > _LONGEST_QUOTED))
        if hopeless and first_break >= 0:  # the line break was not quoted
            place, breaks = first_break, 0
            at_end = False
        if at_end or (data[place] == _NEWLINE and (hopeless or not in_quotes)):
            end = place
            while end > record and data[end - 1] == _RETURN:
                end -= 1
            blank = True
            for character in data[record:end]:
                blank = blank and character == _SPACE
            if not blank:
                starts[count], ends[count], lines[count] = record, end, line
                count += 1
            if at_end:
                break
            record = place + 1
            line += breaks + 1
            breaks, first_break = 0, -1
            in_quotes, may_open, hopeless = False, separator >= 0, False
        elif in_quotes and data[place] == _QUOTE:
            follower = data[place + 1] if place + 1 < len(data) else _NEWLINE
            if follower == _QUOTE:
                place += 1  # a doubled quote
            else:
                in_quotes = False
                hopeless = follower not in (separator, _NEWLINE, _RETURN)
        elif in_quotes:
            if data[place] == _NEWLINE:
                breaks += 1
                if first_break < 0:
                    first_break = place
        else:
            in_quotes = may_open and data[place] == _QUOTE
            may_open = data[place] == separator and not hopeless
        place += 1
    return count, record, line
