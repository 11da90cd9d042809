"""The values of the keys of `notify`. Pure."""

from __future__ import annotations

from .values import choice, items, like

_ADDRESS = r"[^\s\x00,@/-][^\s\x00,@/]*@[^\s\x00,@/]+"
_ADDRESSES = rf"{_ADDRESS}(,{_ADDRESS})*"
_SERVER = r"([^\s\x00@/]+@)?[^\s\x00@/:]+(:[0-9]{1,5})?"

WEBHOOK = like("an http or https URL", r"https?://[^\s\x00]+")
MAIL = like(
    "mailto:ADDRESS, or smtp://[USER:PASSWORD@]SERVER/ADDRESS", rf"mailto:{_ADDRESSES}|smtps?://{_SERVER}/{_ADDRESSES}"
)
EVENTS = items("a list of events", choice("start", "restart", "wait", "stall", "loss", "walltime", "end"), unique=True)
USUAL = ("restart", "wait", "end")
