"""Find a training's figures in the lines that it prints. Pure; the controller uses it too."""

import re
from typing import Dict

# What training loops print, `step:120 loss=3.2 'samples/s': 999` or `step 120/500 loss 3.2`: our name per spelling.
NAMES = {
    "step": ("step", "global_step", "iter", "iteration", "it"),
    "loss": ("loss", "train_loss"),
    "rate": ("samples/s", "samples_per_second", "samples/sec", "img/s", "images/s", "tokens/s", "tok/s"),
    "step_time": ("step_time", "step_time_s"),
    "total": ("total_steps", "max_steps"),
}
_NAME = {spelled: name for name, spellings in NAMES.items() for spelled in spellings}
_NAMES = "|".join(sorted(map(re.escape, _NAME), key=len, reverse=True))
_NUMBER = r"[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf)"
_BETWEEN = r"['\"]?\s*[:=]\s*|(?<!\bit) +(?=%s(?!\w))" % _NUMBER  # `it 3` may be English
_FIGURE = re.compile(r"(?<![\w./])(%s)(?:%s)(%s)(?: */ *(\d+)\b)?" % (_NAMES, _BETWEEN, _NUMBER), re.IGNORECASE)
# `35%|###5  | 35/100 [00:12<00:20,  3.14it/s]` of tqdm
_BAR = re.compile(r"(\d+)/(\d+) \[[^]\n]*?(\d[\d.]*)(it/s|s/it)")
# `time 135.20ms` of nanoGPT, `elapsed time per iteration (ms): 812.3` of Megatron
_MILLISECONDS = re.compile(r"\b(?:time (\d[\d.]*)ms\b|time per iteration \(ms\): (\d[\d.]*))")

_SIGNS = [name for name in _NAME if not any(other in name for other in _NAME if other != name)]  # "it" is in "3 it/s"
# Each in the ways in which it is written: with (?i), the search of a journal takes 18 times as long
PATTERN = "|".join(
    sorted(re.escape(way) for sign in _SIGNS for way in {sign, sign.capitalize(), sign.title(), sign.upper()})
)
"""A regular expression that matches in each line with figures, for a search that is faster than `figures`."""
_PATTERN = re.compile(PATTERN)


def may_have_figures(line: str) -> bool:
    """A line for which this is false has none."""
    return _PATTERN.search(line) is not None


def figures(line: str) -> Dict[str, float]:
    """The figures of a line: any of step, total (steps), loss, rate (per second, of all ranks), step_time (s)."""
    values = _bar(line) if "it/s" in line or "s/it" in line else {}  # type: Dict[str, float]
    for name, value, total in _FIGURE.findall(line):
        try:
            values[_NAME[name.lower()]] = float(value)
        except ValueError:
            continue  # 1.2.3
        if total and _NAME[name.lower()] == "step":
            values["total"] = float(total)
    if "ms" in line:
        match = _MILLISECONDS.search(line)
        if match:
            values["step_time"] = float(match.group(1) or match.group(2)) / 1000
    if "total" in values and values["total"] < values.get("step", 1.0):
        del values["total"]  # 0 may mean that there is no limit
    return values


def _bar(line: str) -> Dict[str, float]:
    bars = _BAR.findall(line)
    if not bars:
        return {}
    step, total, speed, unit = bars[-1]
    try:
        pace = float(speed)
    except ValueError:
        return {}
    values = {"step": float(step), "total": float(total)}
    if pace > 0:
        values["step_time"] = pace if unit == "s/it" else 1 / pace
    return values
