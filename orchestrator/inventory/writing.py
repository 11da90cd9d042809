"""An Inventory as YAML and as JSON, with every key. No IO."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..output.terminal import tame
from .model import Inventory
from .schema import FILE


def as_dict(inventory: Inventory) -> dict[str, Any]:
    """The document of `config --json`: every key with its value, and `defaults` merged into the hosts."""
    keys = tuple(key for key in FILE.keys if key.name not in ("defaults", "from"))
    written = replace(FILE, keys=keys).write(inventory)
    if inventory.any_of is not None:
        written["hosts"] = {"any": inventory.any_of, "of": written["hosts"]}
    return written


def render(inventory: Inventory) -> str:
    """The output of `config`: YAML that parses to the same inventory."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def represent_text(self, text: str) -> yaml.ScalarNode:
            # without quotes, PyYAML folds lines and turns line ends such as U+0085 into spaces
            return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')

    Dumper.add_representer(str, Dumper.represent_text)
    text = yaml.dump(
        as_dict(inventory), Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=1 << 20
    )
    return tame(text, colour=False)  # text that is not printable is in double quotes, where \\u202e is valid YAML
