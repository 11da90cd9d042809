"""The error for a command line of `up` that cannot work, with the one that was probably meant. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError
from ..inventory import advice

MEANT = "{command}"
"""Stands for that command line in the text of the error."""


class OtherCommand(UsageError):
    def __init__(self, text: str, launcher: str, words: Sequence[str], inventory: str) -> None:
        """`launcher`, `words`: what to give as run.launcher, and after `--`."""
        self._text = text
        self.words = tuple(words)
        self.setting = f"run.launcher={launcher}"
        command = advice.command("up", "--set", self.setting, "--", *words, inventory=inventory)
        super().__init__(self.with_command(command))

    def with_command(self, command: str) -> str:
        """The text with another command line, such as one with the options that were given."""
        return self._text.replace(MEANT, command)
