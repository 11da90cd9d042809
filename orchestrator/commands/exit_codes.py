"""Turn the exception that ends a command into a message and an exit code. orchestrator/errors.py lists the codes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from ..errors import Interrupted, OrchError, UsageError
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


def hush_stdout() -> None:
    from ..output.console import hush

    hush(sys.stdout)
