"""How the files of `report` begin, to recognise them by. Pure."""

from __future__ import annotations

import re

PAGE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"""

_DATA = re.compile(r'\{\n  "run_id": "[0-9a-f-]+",\n  "name": "')

SUFFIXES = (".html", ".htm", ".json")
LONGEST = 1000
"""Characters of its beginning that tell whether a file is one."""


def is_report(beginning: str) -> bool:
    return beginning.startswith(PAGE) or _DATA.match(beginning) is not None
