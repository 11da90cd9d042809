"""One page about all parts, from their figures. No IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

SKIPPED = 5  # exit code of a part that cannot run here
# What the trainer must reach on a GPU: (part, variant, question, least)
TARGETS = (
    ("gpt2", "compiled", "bare loop", 1.0),
    ("gpt2", "compiled", "mfu", 0.4),
    ("resnet50", "compiled", "bare loop", 1.0),
    ("resnet50", "compiled", "timm", 1.0),
)


def page(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """`parts`: the figures of each part, empty where it has not run. Markdown."""
    lines = ["# `make gpu`", "", machine(parts.get("facts", {})), "", "| part | | seconds |", "|---|---|---|"]
    for name, part in parts.items():
        lines.append(f"| {name} | {outcome(part)} | {part.get('seconds', '')} |")
    for name in ("gpt2", "resnet50"):
        lines += training(name, parts.get(name, {}))
    if any(part.get("device") == "cuda" for part in parts.values()):
        lines += ["", "## Targets", "", *[target(parts, *each) for each in TARGETS]]
    else:
        lines += ["", "These are tiny sizes on a CPU, to test the parts themselves: the figures mean nothing."]
    return "\n".join([*lines, *tests(parts.get("tests", {})), *commands(parts.get("commands", {}))]) + "\n"


def machine(facts: Mapping[str, Any]) -> str:
    torch = facts.get("torch", {}).get("answer", {})
    gpus = ", ".join(torch.get("gpus") or ["no GPU"])
    two = facts.get("two_ranks_on_one_gpu", "unknown")
    two = two if len(two) < 80 else "refused"
    return (
        f"{gpus}; torch {torch.get('torch', 'unknown')}, CUDA {torch.get('cuda')}, NCCL {torch.get('nccl')}; "
        f"two ranks on one device: {two}"
    )


def outcome(part: Mapping[str, Any]) -> str:
    status = str(part.get("status", "not run"))
    if status in ("ok", "not run", "started"):
        return status
    lines = str(part.get("output", "")).strip().splitlines()
    return f"{status}: {lines[-1][:150] if lines else ''}".replace("|", "\\|")


def training(name: str, part: Mapping[str, Any]) -> list[str]:
    rows = []
    for variant in ("eager", "compiled"):
        measured = part.get(variant, {})
        for contestant, figures in measured.get("contestants", {}).items():
            ratio = measured["speed_of_trainer_to"].get(contestant)
            cells = [
                variant,
                contestant,
                f"{figures['samples_per_second']:.1f}",
                f"{figures['tokens_per_second']:.0f}",
                percent(figures["mfu"]),
                f"{figures['peak_gib']:.1f}",
                "" if ratio is None else f"{ratio:.3f}",
            ]
            rows.append(f"| {' | '.join(cells)} |")
    if not rows:
        return []
    head = "| | | samples/s | targets/s | MFU | peak GiB | speed of the trainer to this |"
    flags = next(part[variant]["config"] for variant in ("eager", "compiled") if variant in part)
    words = " ".join(f"{key}={value}" for key, value in flags.items() if not str(value).startswith("1000000"))
    return ["", f"## {name}", "", f"`{words}`", "", head, "|---|---|---|---|---|---|---|", *rows]


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def target(parts: Mapping[str, Mapping[str, Any]], name: str, variant: str, question: str, least: float) -> str:
    measured = parts.get(name, {}).get(variant, {})
    if question == "mfu":
        value = measured.get("contestants", {}).get("trainer", {}).get("mfu")
        what, wanted = "MFU of the trainer", f"{100 * least:.0f} %"
    else:
        value = measured.get("speed_of_trainer_to", {}).get(question)
        what, wanted = f"speed of the trainer to {question}", f"{least:.2f}"
    if value is None:
        verdict = "not measured"
    else:
        shown = percent(value) if question == "mfu" else f"{value:.3f}"
        verdict = f"{shown}, {'reached' if value >= least else 'NOT reached'}"
    return f"- {name}, {variant}: {what} at least {wanted}: {verdict}"


def tests(part: Mapping[str, Any]) -> list[str]:
    found = part.get("tests", {})
    if not found:
        return []
    counts = Counter(outcome.split()[0].rstrip(":") for outcome in found.values())
    others = [f"- {name}: {outcome[:200]}" for name, outcome in found.items() if not outcome.startswith("passed")]
    return ["", "## Tests", "", ", ".join(f"{count} {what}" for what, count in counts.items()), *others]


def commands(part: Mapping[str, Any]) -> list[str]:
    found = part.get("commands", {})
    if not found:
        return []
    rows = [f"- `{name}`: exit code {each['code']} after {each['seconds']:.1f} s" for name, each in found.items()]
    return ["", "## Commands", "", *rows]
