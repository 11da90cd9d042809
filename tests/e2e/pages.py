"""Open a page in a real browser, and tell what went wrong in it and whom it asked for anything."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
WINDOW = 60.0  # s for a page; it takes about 2


@dataclass(frozen=True)
class Opened:
    errors: tuple[str, ...]
    """What the page's console said."""
    requests: tuple[str, ...]
    """What the page asked for, itself left out."""
    width: int
    height: int
    colours: frozenset[tuple[int, ...]]
    text: str
    """The document as the browser understood it."""


def browser() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no chromium here: the report is not looked at in a browser (apt-get install chromium)")
    return found


def open_page(page: Path, folder: Path, width: int = 1280, height: int = 1600, *, is_dark: bool = False) -> Opened:
    network, picture = folder / "network.json", folder / f"{page.stem}.png"
    command = [browser(), *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}"]
    command += ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if is_dark else []
    shoot = [*command, "--enable-logging=stderr", f"--log-net-log={network}", f"--screenshot={picture}", page.as_uri()]
    said = subprocess.run(shoot, capture_output=True, text=True, timeout=WINDOW, check=True).stderr
    dumped = subprocess.run([*command, "--dump-dom", page.as_uri()], capture_output=True, timeout=WINDOW, check=True)
    events = [event.get("params", {}) for event in json.loads(network.read_text())["events"]]
    # of the browser's own requests the initiator is `not an origin`
    asked = {one["url"] for one in events if "url" in one and one.get("initiator", "not an origin") != "not an origin"}
    size, colours = _pixels(picture.read_bytes())
    errors = tuple(re.findall(r":CONSOLE(?::\d+|\(\d+\))?\] (.*)", said))
    return Opened(errors, tuple(sorted(asked)), *size, colours, dumped.stdout.decode())


def _pixels(png: bytes) -> tuple[tuple[int, int], frozenset[tuple[int, ...]]]:
    """Size and colours of a PNG of 8 bits a channel, as browsers write it (RFC 2083, 6 and 9)."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    data, place, head = b"", 8, (0, 0, 0, 0)
    while place < len(png):
        length, kind = struct.unpack(">I4s", png[place : place + 8])
        body = png[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            head = struct.unpack(">IIBB", body[:10])
        elif kind == b"IDAT":
            data += body
        place += 12 + length
    width, height, depth, kind_of_colour = head
    assert depth == 8 and kind_of_colour in (2, 6)
    channels = 3 if kind_of_colour == 2 else 4
    raw, before, colours = zlib.decompress(data), bytearray(width * channels), set()
    for row in range(height):
        start = row * (width * channels + 1)
        line = bytearray(raw[start + 1 : start + 1 + width * channels])
        _unfilter(raw[start], line, before, channels)
        colours |= {tuple(line[at : at + 3]) for at in range(0, len(line), channels)}
        before = line
    return (width, height), frozenset(colours)


def _unfilter(kind: int, line: bytearray, before: bytearray, channels: int) -> None:
    for at in range(len(line)):
        left = line[at - channels] if at >= channels else 0
        up, corner = before[at], before[at - channels] if at >= channels else 0
        if kind == 1:
            line[at] = (line[at] + left) & 255
        elif kind == 2:
            line[at] = (line[at] + up) & 255
        elif kind == 3:
            line[at] = (line[at] + (left + up) // 2) & 255
        elif kind == 4:
            guess = left + up - corner
            nearest = min((left, up, corner), key=lambda one: abs(guess - one))
            line[at] = (line[at] + nearest) & 255
