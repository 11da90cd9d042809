"""Turn the exception that ends a command into a message and an exit code. orchestrator/errors.py lists the codes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from ..errors import Interrupted, OrchError, OutputError, UsageError
from . import hints


class OutputClosed(Exception):
    """The reader of stdout has gone away, as after `| head`."""


def guarded(work: Callable[[], Any]) -> int:
    """Call `work`, print its error, and return the exit code."""
    import os

    from ..output.console import Console, wants_colour

    console = Console(sys.stderr, wants_colour(sys.stderr, os.environ))
    try:
        work()
    except click.ClickException as error:
        hint = hints.hint(error)  # before format_message: it removes wrong suggestions from the error
        message = error.format_message().rstrip(".")
        console.error(f"{message}{_usage(error)}" if hint is None else f"{message}; {hint}")
        return UsageError.exit_code
    except (click.Abort, KeyboardInterrupt):
        console.error("interrupted")
        return Interrupted.exit_code
    except OrchError as error:
        console.error(str(error))
        return error.exit_code
    except OutputClosed:
        hush_stdout()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except Exception:  # noqa: BLE001  a bug has an exit code of its own
        import traceback

        console.error(
            "this is a bug in ddp-orch. Please report it with the traceback below and the file that this writes: "
            "ddp-orch doctor"
        )
        traceback.print_exc()
        return OrchError.exit_code
    return 0


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return "" if context is None else f"\n  {context.get_usage()}\n  More: {context.command_path} --help"


def flush_streams(code: int) -> int:
    """Write what stdout and stderr have buffered. Returns the exit code: `code`, if that is no success."""
    from ..output.console import Console, hush

    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it was closed before the start
        try:
            stream.flush()
        except (BrokenPipeError, OutputError) as error:
            hush(stream)  # else Python tries again at exit, and exits with 120
            if isinstance(error, OutputError) and code != error.exit_code:  # else it has been said
                Console(sys.stderr, colour=False).error(str(error))
                code = code or error.exit_code
    return code


def hush_stdout() -> None:
    from ..output.console import hush

    hush(sys.stdout)
