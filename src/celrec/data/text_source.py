"""Text files, plain or compressed, read in blocks of whole lines."""

from __future__ import annotations

import gzip
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias, cast

import numpy as np

from celrec.errors import CelrecError

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes so far and the bytes in total."""

BLOCK = 3 << 20  # larger blocks parse a little faster and take more memory
LONGEST_LINE = 64 << 20
_GZIP, _ZIPS = b"\x1f\x8b", (b"PK\x03\x04", b"PK\x05\x06")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_QUOTE, _NEWLINE = ord('"'), ord("\n")


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive whole lines of a file."""

    data: bytes
    start: int
    """The offset in the uncompressed file."""


@dataclass(frozen=True, slots=True)
class TextSource:
    """A text file: plain, gzipped, or inside a zip archive.

    The format is inferred from the first bytes, not from the name. A file inside an archive is
    given by a path through it, as in `ml-1m.zip/ml-1m/ratings.dat`; for an archive with a single
    file the path of the archive is enough.
    """

    path: Path
    member: str | None = None

    @classmethod
    def at(cls, path: str | Path) -> TextSource:
        """The source at `path`, which may point into a zip archive."""
        whole = Path(path)
        for outer in [whole, *whole.parents]:
            if outer.is_file():
                member = whole.relative_to(outer).as_posix() if outer != whole else None
                return cls(outer, member)
        if whole.is_dir():
            raise CelrecError(f"{path}: is a folder; give a file in it")
        raise CelrecError(f"{path}: no such file")

    def __str__(self) -> str:
        return str(self.path / self.member) if self.member else str(self.path)

    @property
    def name(self) -> str:
        """The file's name without folders and archive."""
        return Path(self.member or self.path).name

    def magic(self) -> bytes:
        """The first four bytes of the file on disk."""
        with self.path.open("rb") as file:
            return file.read(4)

    def blocks(
        self,
        *,
        quoted: bool = True,
        encoding: str = "utf-8",
        progress: Progress | None = None,
        size: int = BLOCK,
    ) -> Iterator[Block]:
        """The file's lines in UTF-8, in blocks of about `size` bytes.

        With `quoted`, a line break between double quotes does not end a line.
        """
        total = self.path.stat().st_size
        with self.opened() as (raw, file):
            start, rest = 0, b""
            while data := rest + file.read(size):
                if len(data) == len(rest):
                    yield Block(_to_utf8(data, encoding), start)
                    break
                cut = _last_line_end(data, quoted)
                whole, rest = data[:cut], data[cut:]
                if whole:
                    yield Block(_to_utf8(whole, encoding), start)
                    start += len(whole)
                if len(rest) > LONGEST_LINE:
                    raise CelrecError(
                        f"{self}, line {self.line_at(start)}: a line of over "
                        f"{LONGEST_LINE >> 20} MiB; is a double quote left open there?"
                    )
                if progress:
                    progress(raw.tell(), total)

    def line_at(self, start: int) -> int:
        """The number, from 1, of the line at offset `start` of the uncompressed file.

        It counts all lines before, so it is for error messages only.
        """
        with self.opened() as (_, file):
            line = 1
            while start > 0 and (data := file.read(min(start, BLOCK))):
                line += data.count(b"\n")
                start -= len(data)
        return line

    def estimated_lines(self) -> int:
        """An estimate of the number of lines from the first ones; 0 for compressed files."""
        if self.magic() in _ZIPS or self.magic()[:2] == _GZIP:
            return 0
        with self.path.open("rb") as file:
            beginning = file.read(1 << 16)
        lines = max(beginning.count(b"\n"), 1)
        return self.path.stat().st_size * lines // max(len(beginning), 1) * 21 // 20

    def first_line(self, encoding: str = "utf-8") -> str:
        """The first line without its line break, empty if the file is empty."""
        block = next(self.blocks(encoding=encoding, size=1 << 16), Block(b"", 0))
        try:
            return (
                block.data.removeprefix(BYTE_ORDER_MARK).split(b"\n", 1)[0].rstrip(b"\r").decode()
            )
        except UnicodeDecodeError as error:
            raise CelrecError(f"{self}, line 1: not UTF-8 text; convert the file first") from error

    @contextmanager
    def opened(self) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        """The file on disk, and the stream of its uncompressed contents."""
        try:
            with self.path.open("rb") as raw:
                magic = raw.read(4)
                raw.seek(0)
                if magic in _ZIPS:
                    with (
                        zipfile.ZipFile(raw) as archive,
                        archive.open(self._chosen(archive)) as file,
                    ):
                        yield raw, file
                elif self.member is not None:
                    raise CelrecError(f"{self}: {self.path} is a file, and no zip archive")
                elif magic[:2] == _GZIP:
                    with gzip.open(raw) as unzipped:
                        yield raw, cast(IO[bytes], unzipped)
                else:
                    yield raw, raw
        except (zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise CelrecError(f"{self}: damaged archive ({error}); get the file again") from error
        except (RuntimeError, NotImplementedError) as error:  # encrypted, or unusual compression
            raise CelrecError(f"{self}: cannot unpack ({error}); unpack it by hand") from error
        except OSError as error:
            raise CelrecError(f"{self}: cannot read ({error.strerror or error})") from error

    def _chosen(self, archive: zipfile.ZipFile) -> str:
        members = [name for name in archive.namelist() if not name.endswith("/")]
        if self.member in members:
            return self.member
        if self.member is None and len(members) == 1:
            return members[0]
        problem = "no such file in" if self.member else "which file of"
        raise CelrecError(
            f"{self}: {problem} the archive? It holds {', '.join(members[:8]) or 'nothing'}; "
            f"name one as {self.path}/FILE"
        )


def _last_line_end(data: bytes, quoted: bool) -> int:
    if not quoted or b'"' not in data:
        return data.rfind(b"\n") + 1
    # A line break ends a record only after an even number of quotes; a doubled quote adds two.
    characters = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(characters == _QUOTE)
    breaks = np.flatnonzero(characters == _NEWLINE)
    ends = breaks[np.searchsorted(quotes, breaks) % 2 == 0]
    return int(ends[-1]) + 1 if len(ends) else 0


def _to_utf8(data: bytes, encoding: str) -> bytes:
    return data if re.fullmatch("utf-?8", encoding, re.I) else data.decode(encoding).encode()
