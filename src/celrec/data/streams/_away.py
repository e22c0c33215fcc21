"""A broker does not answer."""


class Away(Exception):  # noqa: N818
    """The broker does not answer now; it may do so later."""
