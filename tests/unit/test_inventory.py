"""Inventories as people write them, right and wrong: a folder of files, each beside what is made of it.

`UPDATE_GOLDEN=1 pytest tests/unit/test_inventory.py` writes the expected files anew; the diff is to be read.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from golden_files import assert_message, same_as

from orchestrator.errors import InventoryError, UsageError
from orchestrator.inventory import model, selection, text_files, writing
from orchestrator.inventory.model import Inventory

GOLDEN = Path(__file__).parent.parent / "golden" / "inventory"
RIGHT = sorted(path.stem for path in GOLDEN.glob("*.json"))
WRONG = sorted(path.stem for path in GOLDEN.glob("*.error"))


def test_every_file_of_the_folder_has_its_expected_result() -> None:
    assert sorted([*RIGHT, *WRONG]) == sorted(path.stem for path in GOLDEN.glob("*.yaml"))


def text_of(name: str) -> str:
    return (GOLDEN / f"{name}.yaml").read_bytes().decode()


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_file_is_understood(name: str) -> None:
    understood = writing.as_dict(model.parse(text_of(name), "inventory.yaml"))
    same_as(GOLDEN / f"{name}.json", json.dumps(understood, indent=1, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_with_every_line_and_key(name: str) -> None:
    with pytest.raises(InventoryError) as refused:
        model.parse(text_of(name), "inventory.yaml")
    same_as(GOLDEN / f"{name}.error", f"{refused.value}\n")


def test_secret_values_are_not_repeated_in_errors() -> None:
    for text in (
        "secrets: TOKEN=hunter2",
        "secrets: [TOKEN=hunter2]",
        "secrets: {TOKEN: hunter2}",
        "env: TOKEN=hunter2",
    ):
        with pytest.raises(InventoryError) as refused:
            model.parse(f"hosts: [a]\nrun: {{{text}}}\n", "inventory.yaml")
        assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("{name: me, address: localhost}", True),
        ("{name: localhost, gpus: none}", True),
        ("127.0.0.1", False),
        ("ann@localhost", False),
        ("{name: localhost, port: 22}", False),
        ("{name: localhost, proxy_jump: bastion}", False),
        ("{name: localhost, address: 10.0.0.1}", False),
    ],
)
def test_only_localhost_as_it_is_goes_without_ssh(host: str, local: bool) -> None:
    assert model.parse(f"hosts: [{host}]", "inventory.yaml").hosts[0].local is local


# --hosts


def of(text: str, settings: Sequence[str] = ()) -> Inventory:
    return model.parse(text, "inventory.yaml", settings)


def test_the_head_stays_when_it_is_selected() -> None:
    assert selection.select(of("{hosts: ['gpu[1-4]'], head: gpu3}"), "gpu[2-4]").head == "gpu3"


def test_the_first_selected_host_is_the_head_when_the_head_is_not() -> None:
    selected = selection.select(of("{hosts: ['gpu[1-4]'], head: gpu3}"), "gpu4,gpu2")
    assert (selected.head, [host.name for host in selected.hosts]) == ("gpu2", ["gpu2", "gpu4"])


def test_selecting_fewer_hosts_than_nnodes_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--hosts gpu1\b.*run\.nnodes\b.*2"):
        selection.select(of("{hosts: ['gpu[1-4]'], run: {nnodes: 2}}"), "gpu1")


@pytest.mark.parametrize(
    ("nnodes", "pattern", "team"),
    [
        ("2:3", "gpu[3-4]", ["gpu3", "gpu4"]),
        ("2:3", "gpu[2-4]", ["gpu2", "gpu3"]),
        ("2:3", "gpu[1-4]", ["gpu1", "gpu2"]),
        ("auto", "gpu[3-4]", ["gpu3", "gpu4"]),
        ("auto", "gpu[2-4]", ["gpu2"]),
    ],
)
def test_spares_that_are_selected_get_the_ranks_for_which_other_hosts_lack(
    nnodes: str, pattern: str, team: list[str]
) -> None:
    """As when only spares are left of a run, which is to be started again on them."""
    hosts = "gpu1, gpu2, {name: gpu3, spare: true}, {name: gpu4, spare: true}"
    selected = selection.select(of(f"{{hosts: [{hosts}], run: {{nnodes: {nnodes}}}}}"), pattern)
    assert [host.name for host in selected.hosts if host.in_team] == team and selected.head == team[0]


# Files


@pytest.mark.parametrize(
    "hosts",
    [
        "any 2 of [gpu1, 'x']",
        "any 2 of [gpu[1,3], hopper]",
        "any 2 of gpu[1-2], hopper",
        "{any: 2, of: [gpu1, {name: hopper, port: 23}]}",
    ],
)
def test_a_number_of_hosts_can_be_left_to_choose(hosts: str) -> None:
    if "'" in hosts:
        with pytest.raises(InventoryError, match="host name"):
            of(f"hosts: {hosts}\n")
        return
    parsed = of(f"hosts: {hosts}\n")
    assert parsed.any_of == 2 and parsed.hosts[-1].name == "hopper"
    assert of(writing.render(parsed)) == parsed
    assert selection.select(parsed, "hopper").any_of is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hosts: any 3 of [a, b]", "hosts: any 3 of 2 hosts: expected a number from 1 to 2"),
        ("hosts: any 0 of [a, b]", "expected a number from 1 to 2"),
        ("hosts: any 1 of []", "expected any N of"),
        ("hosts: any two of [a, b]", "or any N of"),
        ("hosts: {any: 1}", "the keys `any` (a number) and `of`"),
        ("hosts: {any: x, of: [a]}", "the keys `any` (a number) and `of`"),
        ("hosts: any 1 of [a, b]\nrun: {nnodes: 1}", "run.nnodes: cannot be combined"),
        ("hosts: {any: 1, of: [a, {name: b, spare: true}]}", "cannot be combined with spares"),
    ],
)
def test_a_wrong_number_of_hosts_is_explained(text: str, message: str) -> None:
    with pytest.raises(InventoryError, match=re.escape(message)):
        of(text + "\n")


def test_the_command_line_can_leave_hosts_to_choose() -> None:
    inventory = of("{hosts: ['gpu[1-4]'], head: gpu3}")
    assert selection.select(inventory, "any 2").any_of == 2
    selected = selection.select(inventory, "any 2 of gpu[2-4]")
    assert (selected.any_of, len(selected.hosts), selected.head) == (2, 3, "gpu3")
    with pytest.raises(UsageError, match="any 5 of 4 hosts"):
        selection.select(inventory, "any 5")
    with pytest.raises(UsageError, match="cannot be combined"):
        selection.select(of("{hosts: [a, b], run: {nnodes: 2}}"), "any 1")


@pytest.mark.parametrize(
    ("text", "key", "setting", "pattern"),
    [
        ("{hosts: [a, b, c], run: {nnodes: 2}}", "run.nnodes", ["run.nnodes=auto"], "any 2"),
        ("{hosts: [a, b], run: {witness: c, max_restarts: 1}}", "run.witness", ["run.witness=null"], "any 2"),
        (
            "{hosts: [a, b], run: {witness: c, max_restarts: 1, head_lost: elect}}",
            "run.witness",
            ["run.witness=null", "run.head_lost=null"],
            "any 2",
        ),
        ("hosts: [a1, a2, {name: a3, spare: true}]", "spares (a3)", [], "any 2 of a[1-2]"),
    ],
)
def test_what_excludes_a_choice_of_hosts_is_named_with_how_to_do_without(
    text: str, key: str, setting: list[str], pattern: str
) -> None:
    with pytest.raises(UsageError) as refused:
        selection.select(of(text), "any 2")
    message = str(refused.value)
    assert f"with {key}, " in message and all(f"--set {each}" in message for each in setting)
    assert setting or f"--hosts '{pattern}'" in message
    assert selection.select(of(text, setting), pattern).any_of == 2


def test_null_on_the_command_line_means_the_default() -> None:
    text = "{hosts: [a, b], run: {nnodes: 2, max_restarts: 3, env: {A: b}, script: t.py}}"
    run = of(text, ["run.nnodes=null", "run.max_restarts=null", "run.env=null", "run.script=null"]).run
    assert (run.nnodes, run.max_restarts, run.env, run.script) == ("auto", of("hosts: [a]").run.max_restarts, {}, None)
    assert of(text, ["run.walltime=null"]).run.walltime is None
    with pytest.raises(InventoryError, match=r"run\.env\.A"):
        of(text, ["run.env.A=null"])


def test_a_file_is_read_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_bytes(b"\xef\xbb\xbfhosts: [lovelace]\r\n")
    loaded = model.load(path)
    assert (loaded.path, loaded.head) == (str(path), "lovelace")


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InventoryError) as refused:
        model.load(tmp_path / "no.yaml")
    assert_message("inventory-missing", refused.value, FOLDER=tmp_path)


def test_a_folder_is_no_inventory(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=str(tmp_path)) as refused:
        model.load(tmp_path)
    assert isinstance(refused.value.__cause__, IsADirectoryError)


def test_a_path_no_system_takes_is_refused() -> None:
    with pytest.raises(InventoryError) as refused:
        model.load("a\0b")
    assert isinstance(refused.value.__cause__, ValueError)


def test_bytes_that_are_no_utf8_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_bytes(b"hosts:\n  - m\xfcnchen\n")
    with pytest.raises(InventoryError, match=r"inventory\.yaml:2: .*UTF-8.*0xfc"):
        model.load(path)


def test_a_file_beyond_the_limit_is_refused_unparsed(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_bytes(b"# " + b"x" * text_files.MAX_BYTES)
    with pytest.raises(InventoryError, match=r"inventory\.yaml: .*4 MiB"):
        model.load(path)


# What is imported


def test_neither_yaml_nor_ranges_are_imported_before_they_are_needed() -> None:
    program = (
        "import sys; from orchestrator.inventory import model as inventory; assert 'yaml' not in sys.modules\n"
        "inventory.parse('hosts: [a, b]', 'x'); assert 'ClusterShell' not in sys.modules\n"
        "inventory.parse('hosts: [\"a[1-2]\"]', 'x'); assert 'ClusterShell' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_config_prints_nothing_that_turns_the_reading_direction_and_parses_to_the_same() -> None:
    read = model.parse('hosts: [a]\nrun: {env: {A: "x\u202e\u2066y\\e]0;P\\a"}}', "inventory.yaml")
    text = writing.render(read)
    assert not re.search("[\u202e\u2066\x1b\x07]", text)
    assert model.parse(text, "inventory.yaml").run.env == read.run.env == {"A": "x\u202e\u2066y\x1b]0;P\x07"}


@pytest.mark.parametrize("what", ["env: {%s}", "setup: [%s]"])
def test_what_all_hosts_have_together_is_counted_before_it_is_made(what: str) -> None:
    items = ", ".join(f"V{number}: x" if "env" in what else f"line{number}" for number in range(2000))
    with pytest.raises(InventoryError, match=r"hosts\[0\]: .*200,000"):
        model.parse(f"hosts: ['gpu[1-10000]']\ndefaults: {{{what % items}}}", "inventory.yaml")
    assert len(model.parse(f"hosts: ['gpu[1-100]']\ndefaults: {{{what % items}}}", "inventory.yaml").hosts) == 100


FILE = "hosts: [a]\nrun:\n  max_restarts: 1\n  env: {A: file, B: file}\n"


def test_settings_replace_values_of_the_file_and_keep_the_others() -> None:
    settings = ["run.max_restarts=2", "run.max_restarts=3", "run.env.A=set=x", "run.keep.days=2", "notify.bell=true"]
    inventory = model.parse(FILE, "inventory.yaml", settings)
    assert inventory.run.max_restarts == 3
    assert inventory.run.env == {"A": "set=x", "B": "file"}
    assert inventory.run.keep.days == 2 and inventory.notify.bell
    assert model.parse(FILE, "inventory.yaml", ["run.args=[a, 1]"]).run.args == ("a", "1")
    assert model.parse("hosts: [a]\nrun:\n", "inventory.yaml", ["run.walltime=4h"]).run.walltime == 4 * 3600
    assert model.parse("hosts: [a]\nrun: {walltime: 1h}\n", "inventory.yaml", ["run.walltime="]).run.walltime is None


@pytest.mark.parametrize(
    ("text", "value"), [("10", 10.0), ("10s", 10.0), ("1.5m", 90.0), ("2h", 7200.0), ("1d", 86_400.0)]
)
def test_seconds_may_have_a_unit(text: str, value: float) -> None:
    assert model.parse(f"hosts: [a]\nrun: {{rejoin_timeout: {text}}}\n", "i.yaml").run.rejoin_timeout == value


@pytest.mark.parametrize("text", ["10 s", "s", "1h30m", "400d", "10S"])
def test_other_texts_are_no_seconds(text: str) -> None:
    with pytest.raises(InventoryError, match="number of seconds"):
        model.parse(f"hosts: [a]\nrun: {{rejoin_timeout: {text}}}\n", "i.yaml")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("run.max_restarts", "expected KEY=VALUE"),
        ("=3", "expected KEY=VALUE"),
        ("run..x=3", "expected KEY=VALUE"),
        ("max_restarts=3", "only keys of run and notify can be set; did you mean run.max_restarts?"),
        ("max-restarts=3", "did you mean run.max_restarts?"),
        ("runs.max_restarts=3", "did you mean run.max_restarts?"),
        ("restarts=3", "did you mean run.max_restarts?"),
        ("rdzv.port=29500", "did you mean run.rdzv.port?"),
        ("port=29500", "did you mean run.rdzv.port?"),
        ("keep.days=2", "did you mean run.keep.days?"),
        ("env.LR=0.1", "did you mean run.env.LR?"),
        ("webhook=https://a", "did you mean notify.webhook?"),
        ("hosts=[a]", "set hosts in the inventory"),
        ("python=/opt/venv/bin/python", "set python in the inventory"),
        ("defaults.python=x", "set defaults in the inventory"),
        ("defaults.nproc_per_node=2", "torchrun --nproc_per_node=2"),
        ("nproc_per_node=auto", "torchrun --nproc_per_node=N"),
        ("ssh.parallel=3", "set ssh in the inventory"),
        ("lr=0.1", "such as run.grace"),
        ("run=3", "only keys of run"),
        ("run.max_restart=3", "--set run.max_restart: unknown key; did you mean max_restarts?"),
        ("run.max_restarts=many", "--set run.max_restarts: expected a whole number"),
        ("run.args=[a", "--set run.args: "),
        ("run.env.RANK=3", "--set run.env.RANK: the launcher sets this variable"),
        ("run.grace.x=3", "--set run.grace.x: run.grace: expected a number"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_key(setting: str, message: str) -> None:
    with pytest.raises(InventoryError) as refused:
        model.parse(FILE, "inventory.yaml", [setting])
    assert message in str(refused.value), refused.value
    assert "inventory.yaml" not in str(refused.value)


def test_a_setting_does_not_repeat_a_secret() -> None:
    with pytest.raises(InventoryError) as refused:
        model.parse(FILE, "inventory.yaml", ["run.secrets=TOKEN=hunter2"])
    assert "hunter2" not in str(refused.value)
