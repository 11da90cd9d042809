"""Commands in messages work where they are pasted: which inventory a command takes, and how it is named."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from orchestrator.commands import report
from orchestrator.commands.context import command_line_without, load_inventory, load_inventory_of_run
from orchestrator.commands.up_options import UpOptions
from orchestrator.diagnosis import causes
from orchestrator.errors import UnreachableError, UsageError
from orchestrator.hosts.fleet import Results
from orchestrator.inventory import advice, model
from orchestrator.output.lines import Mask
from orchestrator.plan import plan
from orchestrator.runs import launch, recent, registry


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders with inventories; the first is the current one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("DDP_ORCH_INVENTORY", raising=False)
    for folder, name in (("here", "inventory.yaml"), ("here", "my big.yaml"), ("there", "inventory.yaml")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(f"hosts: [{folder}-{name.removesuffix('.yaml').split()[-1]}]\n")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def head(of: object) -> str:
    return of.head  # type: ignore[attr-defined,no-any-return]


def test_the_inventory_is_named_where_the_default_is_another(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def logs(inventory: str) -> str:
        return advice.command("logs", "-f", "nightly", inventory=inventory)

    assert logs("inventory.yaml") == logs(str(here / "inventory.yaml")) == "ddp-orch logs -f nightly"
    assert logs("my big.yaml") == logs(str(here / "my big.yaml")) == "ddp-orch logs -f nightly -i 'my big.yaml'"
    assert logs("../there/inventory.yaml") == "ddp-orch logs -f nightly -i ../there/inventory.yaml"
    assert logs(str(here.parent / "there/inventory.yaml")).split()[-1] == str(here.parent / "there/inventory.yaml")
    assert advice.command("check", inventory="my big.yaml") == "ddp-orch check 'my big.yaml'"
    monkeypatch.setenv("DDP_ORCH_INVENTORY", "my big.yaml")
    assert logs("my big.yaml") == "ddp-orch logs -f nightly"
    assert logs("inventory.yaml") == "ddp-orch logs -f nightly -i inventory.yaml"


def test_the_command_of_a_report_names_the_inventory_from_the_folder_of_the_start(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = UpOptions(
        inventory=None,
        script=("train.py",),
    )

    def start_command(inventory: str) -> str:
        """What a report shows that is written elsewhere."""
        monkeypatch.chdir(here)
        recent.remember(inventory, "20261122-070000-abcd", "nightly")
        recent.remember_command("20261122-070000-abcd", asdict(options))
        loaded = model.load(inventory)
        run = registry.Run("20261122-070000-abcd", "nightly", "failed", 1, "", {})
        monkeypatch.chdir(here.parent / "there")
        folder, line = report._reproduce(run, loaded, Mask()).splitlines()
        assert folder == f"cd {here}"
        return line

    assert start_command("inventory.yaml") == "ddp-orch up -- train.py"
    assert start_command("my big.yaml") == "ddp-orch up 'my big.yaml' -- train.py"
    elsewhere = here.parent / "there/inventory.yaml"
    assert start_command("../there/inventory.yaml") == f"ddp-orch up {elsewhere} -- train.py"


def test_what_names_a_run_takes_the_inventory_that_it_was_started_with(here: Path) -> None:
    recent.remember("my big.yaml", "20261122-070000-abcd", "nightly")
    for run in ("20261122-070000-abcd", "nightly", "20261122", "abcd"):
        assert head(load_inventory_of_run(None, None, run)) == "here-big"
    assert (
        head(load_inventory_of_run(None, None, None))
        == head(load_inventory_of_run(None, None, "other"))
        == "here-inventory"
    )
    assert head(load_inventory_of_run("../there/inventory.yaml", None, "nightly")) == "there-inventory"
    recent.remember("inventory.yaml", "20261123-070000-ef01", "nightly")
    recent.remember("my big.yaml", "20261124-070000-ef02", "nightly")
    assert head(load_inventory_of_run(None, None, "nightly")) == "here-inventory", (
        "the default is one of its inventories"
    )
    (here / "my big.yaml").unlink()
    assert head(load_inventory_of_run(None, None, "ef02")) == "here-inventory"


def test_a_run_in_the_place_of_an_inventory_is_recognised(here: Path) -> None:
    recent.remember("my big.yaml", "20261122-070000-abcd", "q1")
    for run in ("20261122-070000-abcd", "q1"):
        with pytest.raises(UsageError, match=rf"my big\.yaml.*ddp-orch shell {run}\b"):
            load_inventory(run)
    with pytest.raises(UsageError, match="ddp-orch init"):
        load_inventory("q2")


def test_only_commands_about_a_run_take_the_newest_run_s_inventory(here: Path) -> None:
    recent.remember("my big.yaml", "20261122-070000-abcd", "nightly")
    (here / "inventory.yaml").unlink()
    assert head(load_inventory_of_run(None, None, None)) == "here-big"
    with pytest.raises(UsageError, match="no inventory"):
        load_inventory(None)


@dataclass(frozen=True)
class Run:
    run_id: str
    name: str
    unfinished: bool = False


def test_a_run_is_called_by_its_name_unless_that_means_another(here: Path) -> None:
    old, new, other = Run("1", "nightly"), Run("2", "nightly"), Run("3", "3")
    called = [advice.about(run, [old, new, other], "inventory.yaml").command("kill") for run in (old, new, other)]
    assert called == ["ddp-orch kill 1", "ddp-orch kill nightly", "ddp-orch kill 3"]
    older = Run("0", "nightly", unfinished=True)
    called = [advice.about(run, [older, new], "inventory.yaml").command("kill") for run in (older, new)]
    assert called == ["ddp-orch kill 0", "ddp-orch kill 2"]
    hostile = Run("4", "x; reboot")
    assert advice.about(hostile, [hostile], "inventory.yaml").command("kill") == "ddp-orch kill 4"


def test_the_same_again_without_some_hosts_or_with_a_name(here: Path) -> None:
    def again(hosts: str | None = None, script: tuple[str, ...] = (), env: tuple[str, ...] = (), **more: object) -> str:
        up = UpOptions(inventory=None, script=script, hosts=hosts, env=env)
        return up.command("my big.yaml", **more)  # type: ignore[arg-type]

    script = ("train.py", "--note", "two words")
    assert again("gpu[1-4]", script, without=["gpu2"]) == (
        "ddp-orch up 'my big.yaml' --hosts 'gpu[1-4]!gpu2' -- train.py --note 'two words'"
    )
    assert again(None, script, ("A=1 2",), name="nightly") == (
        "ddp-orch up 'my big.yaml' --name nightly -e 'A=1 2' -- train.py --note 'two words'"
    )
    assert shlex.split(again()) == ["ddp-orch", "up", "my big.yaml"]


def test_the_advice_of_modules_that_know_no_inventory_is_completed(here: Path) -> None:
    text = "`ddp-orch setup INVENTORY`; ddp-orch kill --leftovers INVENTORY"
    assert advice.complete_commands(text, "inventory.yaml") == "`ddp-orch setup`; ddp-orch kill --leftovers"
    assert advice.complete_commands(text, "b.yaml") == "`ddp-orch setup b.yaml`; ddp-orch kill --leftovers -i b.yaml"


def test_an_inventory_from_stdin_is_to_be_given_there_again(here: Path) -> None:
    assert advice.command("logs", "-f", "nightly", inventory="-") == "ddp-orch logs -f nightly -i - < INVENTORY"
    assert advice.command("up", "--", "train.py", inventory="-") == "ddp-orch up - -- train.py < INVENTORY"
    assert command_line_without(["gpu2"], ["ps", "-"]) == "ddp-orch ps --hosts '!gpu2' - < INVENTORY"


def test_the_others_are_asked_by_the_option_of_the_command() -> None:
    assert command_line_without(["b"], ["ps", "--hosts=a,b"]) == "ddp-orch ps --hosts 'a,b!b'"
    assert command_line_without(["b"], ["logs", "-f"]) == "ddp-orch logs --host '!b' -f"
    assert command_line_without(["b"], ["logs", "--host", "a", "--host=b,c"]) == "ddp-orch logs --host a --host 'b,c!b'"
    assert command_line_without(["b"], ["logs", "--hosts=a,b"]) == "ddp-orch logs --host 'a,b!b'"


@pytest.mark.parametrize(
    ("text", "down", "left_out"),
    [
        ("hosts: [a, b, c]", ["b"], ["b"]),
        ("hosts: [a, b, c]", ["a"], ["a"]),
        ("hosts: [a, b]", ["a", "b"], []),
        ("hosts: [a, b, c]\nrun: {nnodes: 3}", ["b"], []),
        ("hosts: [a, b, c]\nrun: {nnodes: 2}", ["a"], ["a"]),
        ("hosts: [a, {name: b, spare: true}]", ["a"], ["a"]),
        ("hosts: [a, b, c, {name: d, spare: true}]\nrun: {nnodes: '2:3'}", ["a", "c"], ["a", "c"]),
        ("hosts: [a, b, c, {name: d, spare: true}]\nrun: {nnodes: '2:3'}", ["a", "c", "d"], []),
    ],
)
def test_a_start_without_hosts_is_offered_only_where_up_accepts_it(
    text: str, down: list[str], left_out: list[str]
) -> None:
    of = plan.make(
        model.parse(text, "i.yaml"), run_id="R", name="R", command=("-u", "x.py"), code=None, env={}, debug=False
    )
    context = launch.LaunchContext(
        by="",
        secrets={},
        run_key=b"",
        skip_check=False,
        step=print,
        warn=print,
        command_without=lambda hosts: f"without {' '.join(hosts)}",
        command_to_continue=lambda run: f"continue {run}",
    )
    unreachable = Results({}, {name: UnreachableError(f"{name}: no route to host") for name in down})
    offered = launch.advise_start_without(of, unreachable, context)
    assert bool(launch._blame_head(of, unreachable)) == ("spare" in text and len(down) < 3)
    assert offered.endswith(f"without {' '.join(left_out)}") if left_out else offered == ""


def test_in_a_job_commands_name_the_file_with_the_other_keys_too(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-2]")):
        monkeypatch.setenv(name, value)
    (here / "base.yaml").write_text("run: {grace: 5}\n")
    (here / "both.yaml").write_text("from: '@slurm'\n")
    for words, named in (("@slurm --with base.yaml", "@slurm --with base.yaml"), ("both.yaml", "@slurm")):
        about = advice.AboutRun("job", advice.reference_of(load_inventory(words)))
        assert about.of_all("ps", "--all") == f"ddp-orch ps {named} --all"
        assert about.command("kill") == "ddp-orch kill job"


def test_the_fixes_of_a_diagnosis_have_no_placeholder_for_the_inventory() -> None:
    assert [cause.code for cause in causes.load_knowledge().causes.values() if "INVENTORY" in cause.fix] == []
