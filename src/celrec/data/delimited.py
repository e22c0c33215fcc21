"""Delimited text files: comma-, tab-, semicolon-, pipe- or `::`-separated."""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import polars as pl

from celrec.data.text_source import BYTE_ORDER_MARK, Block, Progress, TextSource
from celrec.errors import CelrecError

_BLOCKS_AHEAD = 2  # parsed in parallel while an earlier block is in use
_SINGLE = ("\t", ",", ";", "|")
_UNIT = "\x1f"  # replaces separators of several characters, which parsers do not support


@dataclass(frozen=True, slots=True)
class Delimited:
    """A table in a text file, read lazily: only the first line until it is iterated.

    The first line is a header unless one of its fields is a number. Without a header the columns
    are named "1", "2", … Fields may be quoted, except with separators of several characters.
    """

    source: TextSource
    separator: str
    names: tuple[str, ...]
    has_header: bool = False
    quoted: bool = True
    """Whether fields may be enclosed in double quotes."""
    encoding: str = "utf-8"

    @classmethod
    def at(
        cls, source: TextSource, *, separator: str | None = None, encoding: str = "utf-8"
    ) -> Delimited:
        """The table in `source`, with its layout inferred from the first line."""
        line = source.first_line(encoding)
        if not line.strip():
            raise CelrecError(f"{source}: the file is empty or begins with an empty line")
        separator = separator or _guess_separator(line)
        if separator not in line:
            raise CelrecError(
                f"{source}, line 1: one column only; name the separator (--separator) if it is "
                "not a comma, tab, semicolon, pipe or '::'"
            )
        if len(separator) > 1:
            fields = line.split(separator)
        else:
            try:
                fields = next(csv.reader([line], delimiter=separator))
            except csv.Error as error:
                raise _unreadable(source, 1, error) from error
        has_header = not any(_is_number(field) for field in fields)
        names = fields if has_header else [str(number + 1) for number in range(len(fields))]
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise CelrecError(f"{source}, line 1: two columns are named {repeated!r}; rename one")
        return cls(source, separator, tuple(names), has_header, len(separator) == 1, encoding)

    def frames(
        self,
        types: Mapping[str, pl.DataType | type[pl.DataType]],
        *,
        drop: bool = False,
        progress: Progress | None = None,
    ) -> Iterator[tuple[Block, pl.DataFrame, int]]:
        """Blocks of the file, each with a frame of the columns `types` and the rows dropped.

        Values that do not parse and missing fields are null. A row with too many fields raises
        an error, or is dropped with `drop`.
        """
        schema = {name: types.get(name, pl.String) for name in self.names}
        wanted = [index for index, name in enumerate(self.names) if name in types]
        blocks = self.source.blocks(quoted=self.quoted, encoding=self.encoding, progress=progress)
        ahead: deque[tuple[Block, Future[tuple[pl.DataFrame, int]]]] = deque()
        with ThreadPoolExecutor(_BLOCKS_AHEAD) as threads:
            for block in blocks:
                block = self._contents(block)
                if not block.data or block.data.isspace():
                    continue
                ahead.append((block, threads.submit(self._frame, block, schema, wanted, drop)))
                if len(ahead) > _BLOCKS_AHEAD:
                    block, parsed = ahead.popleft()
                    yield block, *parsed.result()
            while ahead:
                block, parsed = ahead.popleft()
                yield block, *parsed.result()

    def numbered_rows(self, block: Block) -> Iterator[tuple[int, list[str]]]:
        """Line number and fields of each line of `block`; an empty line has no fields.

        This is slow and for error messages only.
        """
        first = self.source.line_at(block.start)
        text = block.data.decode(errors="replace")
        if self.quoted:
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=self.separator)
            line = 0
            try:
                for row in reader:
                    yield first + line, row
                    line = reader.line_num
            except csv.Error as error:
                raise _unreadable(self.source, first + line, error) from error
        else:
            for line, content in enumerate(text.splitlines()):
                yield first + line, content.split(self.separator) if content else []

    def first_rows(self) -> Iterator[list[str]]:
        """The fields of the first rows of the file, without the header."""
        blocks = self.source.blocks(quoted=self.quoted, encoding=self.encoding, size=1 << 16)
        for _, row in self.numbered_rows(self._contents(next(blocks))):
            if row:
                yield row

    def _contents(self, block: Block) -> Block:
        """The block without a leading byte order mark, header or empty lines."""
        data = block.data
        if block.start == 0:
            data = data.removeprefix(BYTE_ORDER_MARK)
            if self.has_header:
                data = data.partition(b"\n")[2]
        data = data.lstrip(b"\r\n")
        return Block(data, block.start + len(block.data) - len(data))

    def _frame(
        self,
        block: Block,
        schema: Mapping[str, pl.DataType | type[pl.DataType]],
        wanted: list[int],
        drop: bool,
    ) -> tuple[pl.DataFrame, int]:
        try:
            return self._parse(block.data, schema, wanted), 0
        except pl.exceptions.PolarsError as error:
            if not drop:
                raise self._explain(block, error) from error
            regular, dropped = self._regular_rows(block)
            return self._parse(regular, schema, wanted), dropped

    def _parse(
        self,
        data: bytes,
        schema: Mapping[str, pl.DataType | type[pl.DataType]],
        wanted: list[int],
    ) -> pl.DataFrame:
        separator = self.separator
        if len(separator) > 1:
            data = data.replace(separator.encode(), _UNIT.encode())
            separator = _UNIT
        return pl.read_csv(
            data,
            has_header=False,
            schema=schema,
            columns=wanted,
            separator=separator,
            quote_char='"' if self.quoted else None,
            ignore_errors=True,
            missing_columns="insert",  # the first row may be too short
        )

    def _explain(self, block: Block, error: Exception) -> CelrecError:
        for line, row in self.numbered_rows(block):
            if row and len(row) != len(self.names):
                return CelrecError(
                    f"{self.source}, line {line}: {len(row)} fields where {len(self.names)} are "
                    f"expected; fix it, or leave such rows out with drop_invalid (--drop-invalid)"
                )
        try:
            block.data.decode()
        except UnicodeDecodeError as bad:
            line = self.source.line_at(block.start) + block.data.count(b"\n", 0, bad.start)
            return CelrecError(
                f"{self.source}, line {line}: not UTF-8 text; convert the file "
                "(iconv -f latin1 -t utf-8)"
            )
        line = self.source.line_at(block.start)
        return CelrecError(f"{self.source}, line {line} or later: {error}")

    def _regular_rows(self, block: Block) -> tuple[bytes, int]:
        """The rows without surplus fields, and the number of other rows."""
        rows = [row for _, row in self.numbered_rows(block) if row]
        regular = [row for row in rows if len(row) <= len(self.names)]
        kept = io.StringIO()
        if self.quoted:
            csv.writer(kept, delimiter=self.separator, lineterminator="\n").writerows(regular)
        else:
            kept.writelines(self.separator.join(row) + "\n" for row in regular)
        return kept.getvalue().encode(), len(rows) - len(regular)


def _unreadable(source: TextSource, line: int, error: csv.Error) -> CelrecError:
    reason = "a carriage return in the middle" if "new-line" in str(error) else str(error)
    return CelrecError(f"{source}, line {line}: {reason}; fix it, or put the field in quotes")


def _guess_separator(line: str) -> str:
    return "::" if "::" in line else max(_SINGLE, key=line.count)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
