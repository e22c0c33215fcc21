"""Who may change what the service knows."""

from __future__ import annotations

import hmac
import os
from pathlib import Path

from celrec.errors import CelrecError

VARIABLE = "CELREC_API_KEY"
_LEAST = 8


class ApiKey:
    """A secret that requests which change something must show.

    >>> key = ApiKey("correct horse battery")
    >>> key.fits("correct horse battery"), key.fits("guess"), key.fits(None)
    (True, False, False)
    """

    def __init__(self, secret: str) -> None:
        if len(secret) < _LEAST or not secret.isascii() or not secret.isprintable():
            raise CelrecError(
                f"API key: must be {_LEAST} characters or more, printable ASCII, not "
                f"{len(secret)} characters; make one with `openssl rand -hex 32`"
            )
        self._secret = secret.encode()

    @classmethod
    def found(cls, file: Path | None) -> ApiKey | None:
        """The one in a file, else the one in the environment variable CELREC_API_KEY, if any."""
        if file is None:
            secret = os.environ.get(VARIABLE)
            return None if secret is None else cls(secret.strip())
        try:
            return cls(file.read_text().strip())
        except OSError as error:
            raise CelrecError(f"{file}: cannot read the API key ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise CelrecError(f"{file}: holds no API key, but something else") from error

    def fits(self, given: str | None) -> bool:
        """Whether it is the secret; takes as long for any other."""
        return given is not None and hmac.compare_digest(
            given.encode(errors="replace"), self._secret
        )
