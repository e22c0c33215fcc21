"""The entry point of the `celrec` command, and its error rule."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

import celrec
from celrec.cli import data, frontier, online, recommend, reproduce, runs, train
from celrec.cli.terminal import Interruption
from celrec.errors import CelrecError

USER_ERROR, BUG, INTERRUPTED = 2, 1, 130
_LONGEST = 800  # characters of a message

app = typer.Typer(
    name="celrec",
    help="Recommenders with small embedding tables: ids share rows in clusters that are learned.",
    epilog="Each command explains itself: celrec COMMAND --help",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")
app.command()(train.train)
app.command()(online.online)
app.command()(train.compare)
app.command()(frontier.frontier)
app.command()(train.models)
app.command()(train.embeddings)
app.command()(reproduce.reproduce)
app.command()(runs.evaluate)
app.command()(runs.clusters)
app.command()(runs.report)
app.command()(recommend.recommend)
app.command()(recommend.similar)
app.command()(runs.export)
app.command()(online.serve)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"celrec {celrec.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an internal error.")
    ] = False,
) -> None:
    """Options before the command."""
    del version, debug  # a callback and `main` handle them


def main(arguments: list[str] | None = None) -> int:
    """Run the command; its exit code.

    A user's mistake is one line on standard error and code 2. A bug is one line
    and code 1, with the traceback only under `--debug`, which may stand anywhere.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        code = app([a for a in given if a != "--debug"], standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # by Ctrl-C
            return _complain("interrupted", INTERRUPTED)
        return code if isinstance(code, int) else 0
    except TyperException as error:
        shown = not error.format_message()  # the help
        return USER_ERROR if shown else _complain(_usage(error), USER_ERROR)
    except CelrecError as error:
        return _complain(str(error), USER_ERROR)
    except Interruption as error:
        return _complain(str(error), INTERRUPTED)
    except BrokenPipeError:
        return _output_closed()
    except SystemExit as ended:  # how typer and rich take a broken pipe, and completion ends
        if isinstance(ended.__context__, BrokenPipeError):
            return _output_closed()
        return ended.code if isinstance(ended.code, int) else 0
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            return _complain(f"{error.filename or 'disk'}: {error.strerror}", USER_ERROR)
        return _bug(error, debug)
    except Exception as error:
        return _bug(error, debug)


def _output_closed() -> int:
    """The reader of the output, such as `head`, has closed it: end without a message."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _usage(error: TyperException) -> str:
    context = getattr(error, "ctx", None)
    message = error.format_message().rstrip(".")
    return f"{message}; see {context.command_path} --help" if context else message


def _bug(error: Exception, debug: bool) -> int:
    if debug:
        raise error
    kind = type(error).__name__
    return _complain(f"internal error, {kind}: {error}; run again with --debug to see where", BUG)


def _complain(message: str, code: int) -> int:
    line = " ".join(message.split())
    if len(line) > _LONGEST:  # a name or a value is that long; what to do stands at the end
        line = f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"
    print(f"celrec: {line}", file=sys.stderr)  # noqa: T201
    return code
