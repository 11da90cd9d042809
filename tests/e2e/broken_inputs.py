"""Broken input that no host need be asked about: one command line a case, with the files and variables it finds.

What the program says to each is in tests/golden/broken/NAME.txt (test_broken_inputs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TWO = "hosts: [gpu1, gpu2]\n"
BIG = "x" * 200 * 1024


@dataclass(frozen=True)
class Case:
    name: str
    argv: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """Beside `inventory.yaml` (two hosts) and `train.py`, or instead of them."""
    env: Mapping[str, str] = field(default_factory=dict)
    make: Callable[[Path], None] | None = None
    """What is more than a file, in the folder of the call."""
    code: int = 2


CASES: list[Case] = []


def case(name: str, *argv: str, code: int = 2, **options: object) -> None:
    assert all(name != one.name for one in CASES), name
    CASES.append(Case(name, argv, code=code, **options))  # type: ignore[arg-type]


def up(name: str, *argv: str, **options: object) -> None:
    """`up` up to the moment in which it would reach for the hosts."""
    case(name, "up", "inventory.yaml", "--dry-run", *argv, **options)


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


# --- the inventory as a file; what can be wrong inside of it: tests/golden/inventory

case("inventory-is-not-there", "up", "nowhere.yaml")
case("inventory-is-a-folder", "check", ".")
case("inventory-is-empty", "config", "inventory.yaml", files={"inventory.yaml": ""})
case("inventory-is-null-bytes", "config", "inventory.yaml", files={"inventory.yaml": bytes(64)})
case("inventory-is-10-mb", "config", "inventory.yaml", make=lambda here: _sparse(here / "inventory.yaml", 10 << 20))
case("inventory-is-not-utf8", "config", "inventory.yaml", files={"inventory.yaml": b"hosts:\n- gpu1\n- \xff\xfe\n"})
case("inventory-is-utf16", "config", "inventory.yaml", files={"inventory.yaml": TWO.encode("utf-16")})
case("inventory-is-a-script", "up", "train.py", files={"train.py": "import os\nprint(os.environ['RANK'])\n"})
case("inventory-is-json-cut-off", "config", "inventory.yaml", files={"inventory.yaml": '{"hosts": ["gpu1", '})
case("inventory-has-a-path-for-a-host", "config", "inventory.yaml", files={"inventory.yaml": "hosts: [../../etc]\n"})
case("inventory-has-an-option-for-a-host", "ps", "-i", "inventory.yaml", files={"inventory.yaml": "hosts: ['-oX=y']\n"})
case("inventory-of-the-variable-is-gone", "ps", env={"DDP_ORCH_INVENTORY": "gone.yaml"})
case("no-inventory-at-all", "ps", make=lambda here: (here / "inventory.yaml").unlink())
case("inventory-is-an-empty-word", "kill", "-i", "")

# --- which hosts

up("hosts-unknown", "--hosts", "gpu9")
up("hosts-empty", "--hosts", "")
up("hosts-broken-range", "--hosts", "gpu[1-")
up("hosts-huge-range", "--hosts", "gpu[1-999999999]")
up("hosts-no-match", "--hosts", "login*")
up("hosts-none-left", "--hosts", "!gpu[1-2]")
up("hosts-fewer-than-nnodes", "--hosts", "gpu1", files={"inventory.yaml": TWO + "run: {nnodes: 2}\n"})
case("logs-of-an-unknown-host", "logs", "--host", "gpu9")

# --- what to run

up("script-missing", "--", "trian.py")
up("option-of-python-for-a-script", "--", "-O", "train.py")
up("flag-of-the-trainer-unknown", "--", "--epoch", "3")
up("flag-of-the-trainer-wrong", "--", "--batch-size=0")
up("flags-of-the-inventory-wrong", files={"inventory.yaml": TWO + "run: {args: [--data=mnist]}\n"})
up("script-is-a-folder", "--", ".")
up("script-is-a-notebook", "--", "train.ipynb", files={"train.ipynb": "{}"})
SKYPILOT = "resources: {accelerators: A100:8}\nnum_nodes: 2\nrun: |\n  torchrun train.py\n"
up("script-is-a-task-of-skypilot", "--", "task.yaml", files={"task.yaml": SKYPILOT})
up("script-is-an-inventory", "--", "inventory.yaml")
up("script-is-yaml", "--", "conf.yml", files={"conf.yml": "lr: 0.1\n"})
up("script-is-of-the-shell", "--", "run.sh", files={"run.sh": "python train.py\n"})
up(
    "script-of-the-inventory-is-of-the-shell",
    files={"inventory.yaml": TWO + "run: {script: run.sh}\n", "run.sh": ":\n"},
)
case("report-into-a-pdf", "report", "-o", "x.pdf")
up("script-is-an-empty-word", "--", "")
up("script-of-the-inventory-missing", files={"inventory.yaml": TWO + "run: {script: src/train.py}\n"})
up("script-is-a-dangling-link", "--", "link.py", make=lambda here: (here / "link.py").symlink_to("nothing.py"))
up("module-without-a-name", "--", "-m")
up("module-unknown", "--", "-m", "pkg.such", make=lambda here: (here / "pkg").mkdir())
up("code-is-too-large", "--", "train.py", make=lambda here: _sparse(here / "model.bin", 201_000_000))
up("sync-path-missing", "--", "train.py", files={"inventory.yaml": TWO + "run: {sync: [src]}\n"})
up("sync-none-without-workdir", "--", "train.py", files={"inventory.yaml": TWO + "run: {sync: none}\n"})
up("git-is-broken", "--", "train.py", files={".git": "gitdir: nowhere\n"})
up("name-with-a-slash", "--name", "../../x")
up("name-empty", "--name", "")
up("name-with-an-escape", "--name", "a\x1b[2Jb")

# --- the environment and the arguments

up("env-without-value", "-e", "LR")
up("env-without-name", "-e", "=1")
up("env-name-of-a-function", "-e", "BASH_FUNC_x%%=() { id; }")
up("env-name-with-a-newline", "-e", "A\nB=1")
up("env-reserved", "-e", "MASTER_ADDR=gpu1")
up("env-of-200-kib", "-e", f"CONFIG={BIG}", "--", "train.py")
up("env-of-the-inventory-of-200-kib", files={"inventory.yaml": f"{TWO}run: {{env: {{CONFIG: {BIG}}}}}\n"})
up("argument-of-200-kib", "--", "train.py", "--config", BIG)
up("arguments-of-2-mib", "--", "train.py", *["x" * 100_000] * 21)
up("env-that-is-a-secret", "-e", "TOKEN=1", files={"inventory.yaml": TWO + "run: {secrets: [TOKEN]}\n"})
SECRET = {"inventory.yaml": TWO + "run: {secrets: [WANDB_API_KEY, HF_TOKEN]}\n"}
case("secret-not-set", "up", "inventory.yaml", "--", "train.py", files=SECRET, env={"HF_TOKEN": "x"})
secrets = {"WANDB_API_KEY": BIG, "HF_TOKEN": "x"}
case("secret-of-200-kib", "up", "inventory.yaml", "--", "train.py", files=SECRET, env=secrets)

# --- looking at runs, ending them

case("rank-backwards", "logs", "--rank", "5-2")
case("rank-no-number", "logs", "--rank", "all")
case("since-yesterday", "logs", "--since", "yesterday")
case("until-a-13th-month", "logs", "--until", "2026-13-01T00:00:00Z")
case("grep-unfinished", "logs", "--grep", "loss (")
case("json-and-fold", "logs", "--json", "--fold")
case("tail-negative", "logs", "--tail", "-1")
case("stream-unknown", "logs", "--stream", "stdin")
case("kill-two-ways", "kill", "--leftovers", "--all")
case("kill-one-and-all", "kill", "20260101-000000-abcd", "--all")
case("grace-negative", "kill", "--grace", "-1")
case("grace-nan", "kill", "--grace", "nan")
case("grace-infinite", "kill", "--grace", "inf")
case("force-without-pid", "kill", "--force", "gpu1")
case("force-init", "kill", "--force", "gpu1:1")
case("force-unknown-host", "kill", "--force", "gpu7:4711")
case("fetch-an-absolute-path", "fetch", "mine", "/etc/passwd")
case("fetch-upwards", "fetch", "mine", "../../.ssh/id_ed25519")
case("diagnose-a-missing-log", "diagnose", "--log", "nowhere.log")
case("diagnose-a-folder", "diagnose", "--log", ".")
case("diagnose-two-runs", "diagnose", "one", "two")

# --- the other commands

case("check-quick-and-deep", "check", "inventory.yaml", "--quick", "--deep")
case("exec-nothing", "exec", "inventory.yaml")
case("command-unknown", "upp", "inventory.yaml")
case("option-unknown", "up", "inventory.yaml", "--dryrun")
case("option-of-the-script-without-dashes", "up", "inventory.yaml", "train.py", "--momentum", "0.1")
case("launcher-without-dashes", "up", "-d", "torchrun", "--nproc_per_node=2", "train.py", "--epochs", "6")
case("kill-of-an-inventory", "kill", "inventory.yaml")
case("inventory-twice", "check", "inventory.yaml", "-i", "other.yaml")
case("init-without-hosts", "init")
case("init-over-a-file", "init", "gpu1")
case("init-into-nowhere", "init", "-o", "nowhere/inventory.yaml", "gpu1")
case("init-with-a-bad-name", "init", "-o", "new.yaml", "gpu 1; id")
case("setup-a-torch-that-is-no-version", "setup", "inventory.yaml", "--torch", "2.9; touch injected")
case("setup-an-index-that-is-no-address", "setup", "inventory.yaml", "--index-url", "--extra-index-url=http://x")
case("bench-more-hosts-than-there-are", "bench", "inventory.yaml", "--counts", "1,9")
case("bench-no-number", "bench", "inventory.yaml", "--counts", "few")
