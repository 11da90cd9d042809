"""Read files with one JSON value per line, which others may be writing, or have left unfinished."""

import json
from typing import Any, List


def read(path: str) -> List[Any]:
    """The values, the oldest first, without lines that were cut short; [] if there is no such file."""
    values = []
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                try:
                    values.append(json.loads(line))
                except ValueError:
                    pass
    except OSError:
        pass
    return values
