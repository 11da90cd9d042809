"""The log of a report, and the search in it: the only script of the page, which its policy names by its hash. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

SCRIPT = """
(() => {
  const box = document.getElementById("find"), count = document.getElementById("found");
  const lines = [...document.querySelectorAll("#log li")];
  const texts = lines.map(line => line.textContent.toLowerCase());
  const filter = () => {
    const words = box.value.toLowerCase().split(/\\s+/).filter(word => word);
    let found = 0;
    lines.forEach((line, number) => {
      const fits = words.every(word => texts[number].includes(word));
      line.hidden = !fits;
      found += fits;
    });
    count.textContent = words.length ? `${found} of ${lines.length} lines` : "";
  };
  document.getElementById("search").hidden = false;
  box.addEventListener("input", filter);
  filter();
})();
"""
POLICY = f"script-src 'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'"
"""The part of the Content-Security-Policy that allows this script and no other."""

STYLE = """
.log { list-style: none; margin: 0; padding: .7rem; background: var(--card); max-height: 34rem; overflow: auto;
  font: 12.5px/1.45 ui-monospace, monospace; }
.log li { white-space: pre-wrap; overflow-wrap: anywhere; } .log b { font-weight: normal; color: var(--soft); }
.log .stderr { color: var(--bad-text); }
#search { margin: .4rem 0; } #find { font: inherit; color: inherit; background: var(--page); width: 25rem;
  max-width: 100%; padding: .25rem .5rem; border: 1px solid var(--line); border-radius: .3rem; }
@media print { #search { display: none; } .log { max-height: none; }
  .log li:not(:nth-last-child(-n+80)) { display: none; } }
"""


def render(lines: Sequence[Mapping[str, Any]]) -> str:
    """`lines`: as in Report.log. The search field appears only if scripts may run; without it, all lines are there."""
    if not lines:
        return '<p class="none">no output</p>'
    items = "".join(map(_item, lines))
    hint = "words of a line, a host, or a rank such as :3"
    search = (
        f'<p id="search" hidden><input id="find" type="search" placeholder="{hint}" aria-label="search the log">'
        ' <small id="found"></small></p>'
    )
    return f'{search}<ol class="log" id="log">{items}</ol>'


def _item(line: Mapping[str, Any]) -> str:
    kind = ' class="stderr"' if line["stream"] == "stderr" else ""
    return f"<li{kind}><b>{escape(_tag(line))}</b>{escape(line['text'])}</li>"


def _tag(line: Mapping[str, Any]) -> str:
    place = "agent" if line["rank"] is None else line["rank"]
    return f"{line['at'][11:19]} {line['host']}:{place} "
