"""The exceptions of celrec."""


class CelrecError(ValueError):
    """An argument, file or event that cannot be used.

    The message is one line with the argument or file, the value and the remedy. Programs may
    show it to their users unchanged, as the command line does. Any other exception that escapes
    from celrec is a bug.
    """


class DivergedError(CelrecError):
    """Training diverged to values that are not finite; other hyperparameters may not."""


def first_line(problem: object) -> str:
    r"""The first line of an error's text, for a message of one line.

    >>> first_line(ValueError("damaged footer\nin page 3"))
    'damaged footer'
    """
    return str(problem).strip().partition("\n")[0]
