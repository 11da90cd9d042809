"""Make pages of the web site (mkdocs.yml): those outside of docs/, the reference of all commands, two lists."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
ROOT = DOCS.parent


FOLDERS = {"Guides": "guides", "Decisions": "adr"}
"""Sections of the navigation that list all pages of a folder."""


def on_config(config: Any) -> Any:
    config["nav"] = [item for item in map(_filled, config["nav"]) if item]
    return config


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "index.md", content=_page(ROOT / "README.md")))
    files.append(File.generated(config, "cli.md", content=_commands()))
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        files.append(File.generated(config, name, content=_page(ROOT / name)))
    for name in ("inventory.example.yaml", "LICENSE"):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def _filled(item: Any) -> Any:
    """The same part of the navigation, with the pages of FOLDERS. None for a section without pages."""
    if not isinstance(item, dict):
        return item
    ((title, content),) = item.items()
    if title in FOLDERS:
        content = [
            {_title(page): f"{FOLDERS[title]}/{page.name}"} for page in sorted(DOCS.glob(f"{FOLDERS[title]}/*.md"))
        ]
    elif isinstance(content, list):
        content = [part for part in map(_filled, content) if part]
    return {title: content} if content else None


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _page(path: Path) -> str:
    """A page outside of docs/. What it links to must be on the site; links into other folders become their text."""
    text = path.read_text(encoding="utf-8").replace("](docs/", "](")
    return re.sub(r"\[([^]]*)\]\(tests/[^)]*\)", r"\1", text)


def _commands() -> str:
    """The help text of every command, as the program prints it."""
    sys.path.insert(0, str(ROOT))
    import click

    from orchestrator.cli import cli

    parts = ["# Commands", "", "The same texts as `ddp-orch COMMAND --help`.", ""]
    with click.Context(cli, info_name="ddp-orch", terminal_width=80) as program:
        for name in sorted(cli.commands):
            command = cli.commands[name]
            if command.hidden:
                continue
            text = command.get_help(click.Context(command, program, info_name=name, terminal_width=80))
            parts += [f"## ddp-orch {name}", "", "```text", re.sub(r"\x1b\[[0-9;]*m", "", text), "```", ""]
    return "\n".join(parts)
