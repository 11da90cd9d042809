"""The commented example of an inventory and the reference of its keys, both made from the table of keys. No IO."""

from __future__ import annotations

import json
from collections.abc import Iterator

from .schema import FILE, HOST, SECTIONS, Key, Section

_COMMENT_AT = 36

_HEADER = """\
# Every key of a ddp-orch inventory. Only `hosts` is required; the smallest useful file is
#
#     hosts: [lovelace, hopper]
#
# Leave out what you do not need. `ddp-orch config` shows your inventory with every default filled in.
# docs/inventory.md explains the keys.
"""


def example() -> str:
    """The text of inventory.example.yaml."""
    return "\n".join([_HEADER, *_example(FILE, "")]) + "\n"


def _example(section: Section, indent: str) -> Iterator[str]:
    for key in section.keys:
        if key.section is HOST:
            yield _commented(f"{key.name}:", key.doc)
            yield "  - lovelace"
            name, *others = _example(HOST, "    ")
            yield name.replace("    name", "  - name", 1)
            yield from others
        elif key.section:
            yield _commented(f"{indent}{key.name}:", key.doc)
            yield from _example(key.section, indent + "  ")
        else:
            yield _commented(f"{indent}{key.name}: {key.example or _default(key)}", key.doc)


def _commented(text: str, comment: str) -> str:
    return f"{text:<{_COMMENT_AT}}  # {comment}"


def reference() -> str:
    """The tables of docs/inventory.md."""
    return "\n".join(line for section in SECTIONS for line in _table(section))


def _table(section: Section) -> Iterator[str]:
    yield f"### `{section.name}`" if section.name else "### The file"
    yield ""
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for key in section.keys:
        default = key.default_doc or ("" if key.section else f"`{_default(key)}`")
        cells = (f"`{key.name}`", key.kind.want, default, key.doc)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _default(key: Key) -> str:
    value = key.kind.write(key.default)
    return value if isinstance(value, str) else json.dumps(value)
