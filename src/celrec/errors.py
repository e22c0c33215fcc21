"""The exception for mistakes in what the caller gave."""


class CelrecError(ValueError):
    """Something the caller gave cannot be used; the message says what and how to mend it.

    The message is one line that names the argument or file, the value and the
    remedy. Programs may show it to their users as it is; the command line does.
    Anything else that escapes from celrec is a bug.
    """


class DivergedError(CelrecError):
    """Training came to numbers that are not finite; other settings may not."""
