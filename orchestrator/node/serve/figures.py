"""Find a training's figures in the lines that it prints. Pure; the controller uses it too."""

import re
from typing import Dict

# What training loops print, `step:120 loss=3.2 'samples/s': 999` or `step 120 loss 3.2`: our name for each spelling.
NAMES = {
    "step": ("step", "global_step", "iter", "iteration", "it"),
    "loss": ("loss", "train_loss"),
    "rate": ("samples/s", "samples_per_second", "samples/sec", "img/s", "images/s", "tokens/s", "tok/s"),
    "step_time": ("step_time", "step_time_s"),
}
_NAME = {spelled: name for name, spellings in NAMES.items() for spelled in spellings}
_NAMES = "|".join(sorted(map(re.escape, _NAME), key=len, reverse=True))
_NUMBER = r"[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf)"
_BETWEEN = r"['\"]?\s*[:=]\s*|(?<!\bit) +(?=%s(?!\w))" % _NUMBER  # `it 3` may be English
_FIGURE = re.compile(r"(?<![\w./])(%s)(?:%s)(%s)" % (_NAMES, _BETWEEN, _NUMBER), re.IGNORECASE)


def figures(line: str) -> Dict[str, float]:
    """The figures of a training loop's line: any of step, loss, rate (a second, of all ranks), step_time (s)."""
    values = {}
    for name, value in _FIGURE.findall(line):
        try:
            values[_NAME[name.lower()]] = float(value)
        except ValueError:
            pass  # 1.2.3
    return values
