"""The times in logs: ISO, American, ctime and glog stamps -> Unix time, and what lines without a stamp get. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TypeVar

T = TypeVar("T")

MONTHS = {
    name: number
    for number, name in enumerate(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1
    )
}
ISO = re.compile(
    r"\[?(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T _,-]+(?P<time>\d\d:\d\d:\d\d)(?P<part>[.,]\d+)?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?\]?[:|]?\s*(?:[-|] )?"
)
AMERICAN = re.compile(r"\[?(?P<m>\d\d)/(?P<d>\d\d)/(?P<y>\d{4}|\d\d) (?P<time>\d\d:\d\d:\d\d)(?P<part>[.,]\d+)?\]?\s*")
CTIME = re.compile(
    r"\[?(?:[A-Z][a-z]{2} )?(?P<mon>[A-Z][a-z]{2}) +(?P<d>\d{1,2}) (?P<time>\d\d:\d\d:\d\d)(?P<part>\.\d+)?"
    r"(?: (?P<y>\d{4}))?\]?:? "
)
GLOG = re.compile(r"\[?[IWEF](?P<md>\d{3,4}) (?P<time>\d\d:\d\d:\d\d)(?P<part>\.\d+)? ")
BRACKETED_ISO = re.compile(r"\[(?P<date>\d{4}-\d\d-\d\d)[ T](?P<time>\d\d:\d\d:\d\d)(?P<part>[.,]\d+)?\]")
WRITTEN_YEAR = re.compile(r"\b(20\d\d)-\d\d-\d\d[_T ]\d\d:\d\d")
NO_YEAR = 1972  # a leap year, long before any log
FIRST_DATED = datetime(NO_YEAR + 1, 1, 1, tzinfo=timezone.utc).timestamp()


def parse_time(text: str) -> tuple[float | None, str]:
    """The time at the beginning of a line, and the rest of the line."""
    if match := ISO.match(text):
        year, month_day = match["date"][:4], match["date"][5:].replace("-", "").replace("/", "")
        return _to_seconds(year, month_day, match["time"], match["part"], match["zone"]), text[match.end() :]
    if match := CTIME.match(text):
        if match["mon"] in MONTHS:
            month_day = f"{MONTHS[match['mon']]:02}{int(match['d']):02}"
            return _to_seconds(match["y"], month_day, match["time"], match["part"]), text[match.end() :]
    elif match := AMERICAN.match(text):
        year = match["y"] if len(match["y"]) == 4 else f"20{match['y']}"
        return _to_seconds(year, match["m"] + match["d"], match["time"], match["part"]), text[match.end() :]
    return None, text


def has_zone(text: str) -> bool:
    """Whether the time at the beginning of a line has a zone. Only ISO times may have one."""
    match = ISO.match(text)
    return match is not None and match["zone"] is not None


def find_time(text: str) -> float | None:
    """The first time anywhere in a line: glog's, as torch and NCCL write it, else one in brackets."""
    if glog := GLOG.search(text):
        at = _to_seconds(None, glog["md"].zfill(4), glog["time"], glog["part"])
        if at is not None:
            return at
    if iso := BRACKETED_ISO.search(text):
        return _to_seconds(iso["date"][:4], iso["date"][5:].replace("-", ""), iso["time"], iso["part"])
    return None


def _to_seconds(
    year: str | None, month_day: str, time: str, fraction: str | None, zone: str | None = None
) -> float | None:
    offset = "+00:00" if zone in (None, "Z") else zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
    stamp = f"{year or NO_YEAR}-{month_day[:2]}-{month_day[2:]}T{time}{offset}"
    try:
        seconds = datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None
    return seconds + (float("0." + fraction[1:]) if fraction else 0.0)


def fill_gaps(times: Sequence[T | None]) -> list[T | None]:
    """A line without a time gets that of the next one that has one, as torchrun reports a traceback after it.

    The lines after the last time get that one.
    """
    filled = list(times)
    for place in reversed(range(len(filled) - 1)):
        if filled[place] is None:
            filled[place] = filled[place + 1]
    for place in range(1, len(filled)):
        if filled[place] is None:
            filled[place] = filled[place - 1]
    return filled


def from_local(at: float) -> float:
    """The Unix time of a time without a zone that was taken as UTC: it is of the zone of this process."""
    return datetime.fromtimestamp(at, timezone.utc).replace(tzinfo=None).timestamp()


def guess_year(times: Sequence[float | None], texts: Sequence[str]) -> int | None:
    """The year of the last time that has one, else the first year in the texts."""
    dated = [at for at in times if at is not None and not lacks_year(at)]
    if dated:
        return datetime.fromtimestamp(dated[-1], timezone.utc).year
    written = next((match[1] for text in texts if (match := WRITTEN_YEAR.search(text))), None)
    return None if written is None else int(written)


def lacks_year(at: float) -> bool:
    return at < FIRST_DATED


def seconds_to_year(year: int) -> float:
    """What to add to a time without a year."""
    # from March on, so that a day after February stays the day it is, whether the year is a leap year or not
    return (datetime(year, 3, 1, tzinfo=timezone.utc) - datetime(NO_YEAR, 3, 1, tzinfo=timezone.utc)).total_seconds()
