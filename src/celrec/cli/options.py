"""Options of commands, made from the table in `celrec.config.options`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from celrec.config.option import Option
from celrec.config.options import ONLINE, online_defaults, options_of

Options: TypeAlias = Mapping[str, Any]
"""The values of a command's shared options by name."""
_KEYWORD = inspect.Parameter.KEYWORD_ONLY

RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="The folder of `celrec train --out` or `celrec online --run`."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def takes_options(command: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator: the options of `command` are typer's, and arrive as one argument, `options`.

    The function's other parameters are as typer has them. Former names of an option are accepted,
    and not shown in the help.

    >>> @takes_options("serve")
    ... def show(options: Options) -> None:
    ...     print(dict(options))
    >>> show(checkpoint_every=5, checkpoint_seconds=1.0)
    {'checkpoint_every': 5, 'checkpoint_seconds': 1.0}
    """
    table = options_of(command)
    former = {name: option.name for option in table for name in option.former_names}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter.replace(kind=_KEYWORD)
            for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
            if name != "options"
        ]
        required = [one for one in own if one.default is inspect.Parameter.empty]
        others = [one for one in own if one.default is not inspect.Parameter.empty]
        made = [_parameter(option, command) for option in table]
        hidden = [
            _former_parameter(option, name) for option in table for name in option.former_names
        ]
        every = [*required, *made, *hidden, *others]

        @functools.wraps(function)
        def with_options(**arguments: Any) -> None:
            values = {option.name: arguments.pop(option.name) for option in table}
            for old, name in former.items():
                value = arguments.pop(old, None)
                values[name] = value if values[name] is None else values[name]
            function(**arguments, options=values)

        with_options.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        with_options.__annotations__ = {one.name: one.annotation for one in every}
        return with_options

    return decorate


def _parameter(option: Option, command: str) -> inspect.Parameter:
    """A typer parameter for an option.

    `celrec online` must know which options were given, since others are as the run began; so its
    defaults are shown only.
    """
    value = option.places[command]
    recorded = command == ONLINE and option.name in online_defaults()
    shown: bool | str = str(value) if recorded and value not in (None, []) else not recorded
    if recorded or value in (None, []):
        value = None
    info = typer.Option(option.switch, help=option.help_in(command), show_default=shown)
    kind = option.type | None if value is None else option.type
    return inspect.Parameter(option.name, _KEYWORD, default=value, annotation=Annotated[kind, info])


def _former_parameter(option: Option, name: str) -> inspect.Parameter:
    info = typer.Option(f"--{name.replace('_', '-')}", hidden=True)
    return inspect.Parameter(
        name, _KEYWORD, default=None, annotation=Annotated[option.type | None, info]
    )
