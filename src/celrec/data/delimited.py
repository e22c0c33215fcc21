"""Tables in text files: comma-, tab-, semicolon-, pipe- or `::`-separated."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from celrec.data.text_source import Block, Progress, TextSource
from celrec.errors import CelrecError

_SINGLE = ("\t", ",", ";", "|")
_UNIT = "\x1f"  # stands for separators of several characters, which parsers do not take


@dataclass(frozen=True, slots=True)
class Delimited:
    """A table in a text file, read lazily: nothing but the first line until it is iterated.

    The first line is a header unless one of its fields is a number (a log
    always has a numeric target). Without a header the columns are named "1",
    "2", … Fields may be quoted, except between separators of several
    characters, whose files know no quotes.
    """

    source: TextSource
    separator: str
    names: tuple[str, ...]
    has_header: bool
    encoding: str = "utf-8"

    @classmethod
    def at(
        cls, source: TextSource, *, separator: str | None = None, encoding: str = "utf-8"
    ) -> Delimited:
        """The table in `source`, its layout read off the first line where it is not given."""
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
            fields = next(csv.reader([line], delimiter=separator))
        has_header = not any(_is_number(field) for field in fields)
        names = fields if has_header else [str(number + 1) for number in range(len(fields))]
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise CelrecError(f"{source}, line 1: two columns are named {repeated!r}; rename one")
        return cls(source, separator, tuple(names), has_header, encoding)

    @property
    def quoted(self) -> bool:
        """Whether fields may stand between double quotes."""
        return len(self.separator) == 1

    def frames(
        self,
        types: Mapping[str, pl.DataType | type[pl.DataType]],
        *,
        drop: bool = False,
        progress: Progress | None = None,
    ) -> Iterator[tuple[Block, pl.DataFrame]]:
        """Blocks of the file and the columns `types` of each; null where a value does not parse.

        A row with too many or too few fields raises, or is left out with `drop`.
        """
        schema = {name: types.get(name, pl.String) for name in self.names}
        wanted = [index for index, name in enumerate(self.names) if name in types]
        blocks = self.source.blocks(quoted=self.quoted, encoding=self.encoding, progress=progress)
        for block in blocks:
            if self.has_header and block.first_line == 1:
                block = _without_first_line(block)
            if not block.data.strip():
                continue
            try:
                frame = self._parse(block.data, schema, wanted)
            except pl.exceptions.PolarsError as error:
                if not drop:
                    raise self._explain(block, error) from error
                frame = self._parse(self._regular_rows(block), schema, wanted)
            yield block, frame

    def rows(self, block: Block) -> Iterator[tuple[int, list[str]]]:
        """Line number and fields of each line of `block`, none for an empty line.

        The slow way, to explain an error.
        """
        text = block.data.decode(errors="replace")
        if self.quoted:
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=self.separator)
            line = 0
            for row in reader:
                yield block.first_line + line, row
                line = reader.line_num
        else:
            for line, content in enumerate(text.splitlines()):
                yield block.first_line + line, content.split(self.separator) if content else []

    def first_rows(self) -> Iterator[list[str]]:
        """The fields of the rows at the beginning of the file, the header left out."""
        blocks = self.source.blocks(quoted=self.quoted, encoding=self.encoding, size=1 << 16)
        for _, row in list(self.rows(next(blocks)))[self.has_header :]:
            if row:
                yield row

    def _parse(
        self,
        data: bytes,
        schema: Mapping[str, pl.DataType | type[pl.DataType]],
        wanted: list[int],
    ) -> pl.DataFrame:
        if not self.quoted:
            data = data.replace(self.separator.encode(), _UNIT.encode())
        return pl.read_csv(
            data,
            has_header=False,
            schema=schema,
            columns=wanted,
            separator=self.separator if self.quoted else _UNIT,
            quote_char='"' if self.quoted else None,
            ignore_errors=True,
        )

    def _explain(self, block: Block, error: Exception) -> CelrecError:
        for line, row in self.rows(block):
            if row and len(row) != len(self.names):
                return CelrecError(
                    f"{self.source}, line {line}: {len(row)} fields where {len(self.names)} are "
                    f"expected; mend the row or leave such rows out (--drop-invalid)"
                )
        try:
            block.data.decode()
        except UnicodeDecodeError as bad:
            line = block.first_line + block.data.count(b"\n", 0, bad.start)
            return CelrecError(
                f"{self.source}, line {line}: not UTF-8 text; convert the file "
                "(iconv -f latin1 -t utf-8)"
            )
        return CelrecError(f"{self.source}, line {block.first_line} or later: {error}")

    def _regular_rows(self, block: Block) -> bytes:
        kept = io.StringIO()
        if self.quoted:
            writer = csv.writer(kept, delimiter=self.separator, lineterminator="\n")
            writer.writerows(row for _, row in self.rows(block) if len(row) == len(self.names))
        else:
            rows = (row for _, row in self.rows(block) if len(row) == len(self.names))
            kept.writelines(self.separator.join(row) + "\n" for row in rows)
        return kept.getvalue().encode()


def _guess_separator(line: str) -> str:
    return "::" if "::" in line else max(_SINGLE, key=line.count)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _without_first_line(block: Block) -> Block:
    _, _, rest = block.data.partition(b"\n")
    return Block(rest, block.first_line + 1)
