"""The options of `up`, and the command lines that start the same run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..inventory import advice
from ..output.console import all_but
from ..plan.other_command import OtherCommand
from .restarting import command_to_restart


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    inventory: str | None
    script: tuple[str, ...]
    detach: bool = False
    dry_run: bool = False
    as_json: bool = False
    name: str | None = None
    skip_check: bool = False
    hosts: str | None = None
    wait: bool = False
    queue: bool = False
    watch: bool = False
    debug: bool = False
    timing: bool = False
    requeue: bool = False
    env: tuple[str, ...] = ()
    env_file: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()  # KEY=VALUE, of the inventory
    show_outputs: bool = True  # how to fetch what the run has written
    call: str | None = None  # MODULE:FUNCTION, called in place of the script
    continues: str | None = None  # the run whose files beside the code this one gets too
    trainer_args: tuple[str, ...] = ()  # for the bundled trainer, after run.args; run.script is ignored

    @property
    def _repeated(self) -> Mapping[str, tuple[str, tuple[str, ...]]]:
        """By field: an option that can be repeated, and its values."""
        return {
            "env_file": ("--env-file", self.env_file),
            "env": ("-e", self.env),
            "settings": ("--set", self.settings),
        }

    def command(
        self, inventory: str, *, without: Sequence[str] = (), name: str | None = None, folder: Path | None = None
    ) -> str:
        """The command line that starts the same run again, without some hosts or with another name.

        `inventory`: its path. `folder`: where to call it (None: in the current one).
        Returns "" if the run was not started by `up`.
        """
        if self.trainer_args:
            return ""
        hosts = (self.hosts or "") + (all_but(without) if without else "")
        flags = {
            "--detach": self.detach,
            "--json": self.as_json,
            "--skip-check": self.skip_check,
            "--wait": self.wait and not self.watch,  # implied
            "--queue": self.queue,
            "--watch": self.watch,
            "--debug": self.debug,
            "--timing": self.timing,
            "--requeue": self.requeue,
        }
        words = [flag for flag, is_set in flags.items() if is_set]
        values = [(option, value) for option, values in self._repeated.values() for value in values]
        for option, value in (("--name", name or self.name), ("--hosts", hosts), ("--call", self.call), *values):
            words += [option, value] if value else []
        words += ("--", *self.script) if self.script else ()
        return advice.command("up", *words, inventory=inventory, folder=folder)

    def correct(self, error: OtherCommand) -> UpOptions:
        """With the script and the launcher that were probably meant."""
        others = [setting for setting in self.settings if not setting.startswith("run.launcher=")]
        return replace(self, script=error.words, settings=(*others, error.setting))

    def command_to_restart(self, run_id: str, inventory: str, *, without: Sequence[str] = ()) -> str:
        """The command line that starts an earlier run again, on the hosts of this one."""
        return command_to_restart(
            run_id,
            hosts=self.hosts,
            repeated=self._repeated,
            detach=self.detach,
            inventory=inventory,
            without=without,
        )
