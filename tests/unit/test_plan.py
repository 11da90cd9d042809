"""An inventory becomes a plan: who is which node, with which command and environment; what people see of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import host_facts
import pytest
from host_facts import GPU, PYTHON, decoded

from orchestrator.answers.facts import Facts
from orchestrator.commands.describe import describe_commit
from orchestrator.errors import UnreachableError, UsageError
from orchestrator.inventory import model, selection
from orchestrator.plan import description, launchers, losses, node_spec, plan
from orchestrator.plan.commit import Commit
from orchestrator.plan.plan import Code, Plan, describe_unused
from orchestrator.runs import stand_ins

GOLDEN = Path(__file__).parents[1] / "golden" / "plan"
COMMAND = ("-u", "train.py", "--lr", "0.1")
CODE = Code("ab" * 32, "sub", "/home/ann/code", 3, 1_500_000)


def made(text: str, env: Mapping[str, str] | None = None, *, debug: bool = False, code: Code | None = CODE) -> Plan:
    read = model.parse(text, "inventory.yaml")
    return plan.make(read, run_id="R", name="lab", command=COMMAND, code=code, env=env or {}, debug=debug)


def facts(*gpus: int, torch: str | None = None) -> Facts:
    indexed = [{**GPU, "index": index} for index in gpus]
    return decoded(host_facts.facts(gpus=indexed, python={**PYTHON, "torch": torch}))


def described(text: str, number: int = 0) -> dict[str, Any]:
    node: dict[str, Any] = description.as_dict(made(text))["nodes"][number]
    return node


def names(of: Plan) -> list[str]:
    return [node.host.name for node in of.nodes]


# --- who takes part


def test_node_ranks_follow_the_inventory_with_the_head_moved_first() -> None:
    assert names(made("hosts: [a, b, c]")) == ["a", "b", "c"]
    assert names(made("hosts: [a, b, c]\nhead: c")) == ["c", "a", "b"]


def test_no_more_nodes_than_wanted_take_part() -> None:
    assert names(made("hosts: [a, b, c]\nhead: b\nrun: {nnodes: 2}")) == ["b", "a"]


def test_hosts_beyond_nnodes_are_named() -> None:
    (note,) = describe_unused(made("hosts: [a, b, c, {name: d, spare: true}]\nhead: b\nrun: {nnodes: '1:2'}"))
    assert note.startswith("c: ") and "run.nnodes" in note and "2 hosts" in note
    assert describe_unused(made("hosts: [a, b, {name: c, spare: true}]\nrun: {nnodes: '1:2'}")) == ()


# --- what only guards know


def test_every_node_gets_the_run_key() -> None:
    run_key, of = bytes(range(32)), made("hosts: [a, b, c]")
    keys = [node_spec.private(of, number, run_key=run_key, secrets={})["key"] for number in range(3)]
    assert keys == [run_key.hex()] * 3


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("hosts: [a, b, c, d]", [0, 1]),
        ("hosts: [a]", [0]),
        ("hosts: [a, b, c, d, {name: s, spare: true}]", [0, 1, 4]),
        ("hosts: [a, b, c, d]\nrun: {nnodes: '3:4'}", [0, 1, 2]),
        ("hosts: [a, b, c, d]\nrun: {nnodes: '1:4'}", [0, 1, 2, 3]),
    ],
)
def test_the_webhook_goes_to_the_head_and_to_those_that_may_report_its_loss(text: str, numbers: list[int]) -> None:
    of = made(text + "\nnotify: {webhook: 'https://hooks.example.org/secret'}")
    told = [node_spec.private(of, number, run_key=bytes(32), secrets={})["notify"] for number in range(len(of.nodes))]
    assert [number for number, notify in enumerate(told) if notify.get("webhook")] == numbers
    assert all("secret" not in str(notify) for number, notify in enumerate(told) if number not in numbers)


# --- ranks and GPUs


@pytest.mark.parametrize(
    ("host", "nproc", "visible"),
    [
        ("{name: a}", "auto", None),
        ("{name: a, gpus: none}", 1, ""),
        ("{name: a, gpus: 2}", 2, "0,1"),
        ("{name: a, gpus: [5, 2]}", 2, "5,2"),
        ("{name: a, gpus: [5, 2], nproc_per_node: 1}", 1, "5,2"),
        ("{name: a, nproc_per_node: 3}", 3, None),
    ],
)
def test_the_number_of_ranks_comes_from_the_gpus(host: str, nproc: object, visible: str | None) -> None:
    (node,) = made(f"hosts: [{host}]").nodes
    assert node.nproc == nproc
    assert node.auto_env.get("CUDA_VISIBLE_DEVICES") == visible


def test_the_facts_resolve_what_is_auto_and_nothing_else() -> None:
    resolved = plan.resolve(
        made("hosts: [a, b, {name: c, nproc_per_node: 3}]"), {"a": facts(0, 1), "b": facts(), "c": facts(0)}
    )
    assert [node.nproc for node in resolved.nodes] == [2, 1, 3]
    assert plan.world_size(resolved) == 6
    spec = node_spec.spec(resolved, 0, {"a": facts(4, 7)}, created_at="now", by="ann")
    assert spec["gpu_ids"] == [4, 7]
    assert [(node["host"], node["nproc"], node["spare"]) for node in spec["nodes"]] == [
        ("a", 2, False),
        ("b", 1, False),
        ("c", 3, False),
    ]


# --- what a run survives


def spec_of(text: str) -> Mapping[str, Any]:
    planned = made(text)
    known = {node.host.name: facts() for node in planned.nodes}
    return node_spec.spec(plan.resolve(planned, known), 0, known, created_at="", by="")


def test_lost_hosts_are_waited_for_only_where_there_are_restarts() -> None:
    assert [spec_of(f"hosts: [a, b]\nrun: {{{text}}}")["rejoin_timeout"] for text in ("", "max_restarts: 1")] == [
        0,
        600,
    ]
    assert spec_of("hosts: [a, b]\nrun: {max_restarts: 1, rejoin_timeout: 30}")["rejoin_timeout"] == 30


def test_a_team_grows_back_to_what_the_inventory_asks_for() -> None:
    hosts = "hosts: [a, b, c, {name: s, spare: true}]\n"
    assert [spec_of(f"{hosts}run: {{nnodes: {nnodes}}}")["max_nodes"] for nnodes in ("auto", "2", "1:2", "2:4")] == [
        *(3, 2, 2, 4)
    ]


def test_walltime_and_lease_reach_the_nodes_in_seconds() -> None:
    spec = spec_of("hosts: [a]\nrun: {walltime: 1h30m, lease: 30}")
    assert (spec["walltime"], spec["lease"], spec_of("hosts: [a]")["walltime"]) == (5400, 30, None)


# --- environment


def test_the_command_line_wins_over_the_host_and_that_over_the_run() -> None:
    text = "hosts: [{name: a, env: {X: host, Y: host}}]\nrun: {env: {X: run, Y: run, Z: run}}"
    assert made(text, {"X": "line"}).nodes[0].env == {"X": "line", "Y": "host", "Z": "run"}


def test_what_the_user_says_wins_over_ours() -> None:
    text = "hosts: [{name: a, interface: eth1, env: {OMP_NUM_THREADS: 3}}]\nrun: {env: {NCCL_DEBUG: WARN}}"
    (node,) = made(text, debug=True).nodes
    assert node.env["NCCL_DEBUG"] == "WARN"
    assert node.env["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"
    assert "OMP_NUM_THREADS" not in node.auto_env
    assert described(text)["env"]["OMP_NUM_THREADS"] == "3"
    assert described(text)["env"]["NCCL_SOCKET_IFNAME"] == "eth1"


# --- what people see


def test_secrets_are_masked_in_text_and_in_json_and_only_their_names_are_in_the_spec() -> None:
    planned = made("hosts: [a]\nrun: {secrets: [TOKEN]}")
    assert description.as_dict(planned)["nodes"][0]["env"]["TOKEN"] == "***"
    assert "TOKEN=***" in description.as_text(planned)
    spec = node_spec.spec(plan.resolve(planned, {"a": facts()}), 0, {"a": facts()}, created_at="now", by="ann")
    assert spec["secrets"] == ["TOKEN"] and "TOKEN" not in json.dumps({**spec, "secrets": []})


def test_what_only_hosts_know_is_auto_and_what_the_inventory_says_is_not() -> None:
    assert {"--master-addr=auto", "--master-port=auto", "--local-addr=auto"} < set(described("hosts: [a, b]")["agent"])
    hosts = "hosts: [{name: a, cluster_address: 10.0.0.1}, {name: b, cluster_address: 10.0.0.2}]"
    text = f"{hosts}\nrun: {{rdzv: {{port: 29500}}}}"
    assert {"--master-addr=10.0.0.1", "--master-port=29500", "--local-addr=10.0.0.2", "--node-rank=1"} < set(
        described(text, 1)["agent"]
    )


def test_static_rendezvous_gives_ranks_by_place() -> None:
    agent = described("hosts: [a, b]", 1)["agent"]
    assert agent[:3] == ["python3", "-m", "torch.distributed.run"]
    assert {"--rdzv-backend=static", "--node-rank=1", "--nnodes=2", "--max-restarts=0"} < set(agent)
    assert not [word for word in agent if word.startswith("--rdzv-endpoint")]


@pytest.mark.parametrize(
    ("torch", "by_module"),
    [("2.4.1+cu121", False), ("2.12.0", False), ("2.13.0+cpu", True), ("3.0", True), ("unknown", True), (None, True)],
)
def test_torch_that_has_no_shutdown_timeout_is_given_one(torch: str | None, by_module: bool) -> None:
    known = {"a": facts(torch=torch)}
    spec = node_spec.spec(plan.resolve(made("hosts: [a]"), known), 0, known, created_at="", by="")
    command, text, *arguments = spec["agent_argv"]
    assert spec["auto_env"]["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "86400"
    assert arguments == list(launchers.TORCHRUN_STATIC.agent[2:])
    assert (command, text) == ("-m", "torch.distributed.run") if by_module else command == "-c"
    if not by_module:
        compile(text.format_map({}), "-c", "exec")


def test_c10d_says_who_hosts_the_store() -> None:
    text = "hosts: [a, b]\nrun: {rdzv: {backend: c10d}}"
    assert {"--rdzv-backend=c10d", "--rdzv-conf=is_host=1"} < set(described(text, 0)["agent"])
    assert "--rdzv-conf=is_host=0" in described(text, 1)["agent"]
    assert not [word for word in described(text)["agent"] if word.startswith("--master")]


def test_direct_has_no_agent() -> None:
    text = "hosts: [a]\nrun: {launcher: direct}"
    assert described(text)["agent"] is None
    assert "  agent " not in description.as_text(made(text))
    spec = node_spec.spec(plan.resolve(made(text), {"a": facts()}), 0, {"a": facts()}, created_at="now", by="ann")
    assert spec["agent_argv"] == []


def test_a_host_with_a_workdir_is_sent_nothing() -> None:
    text = "hosts: [a, {name: b, workdir: /shared}]"
    assert [described(text, number)["sends"] for number in (0, 1)] == ["code abababababab", None]
    resolved = plan.resolve(made(text), {"a": facts(), "b": facts()})
    specs = [node_spec.spec(resolved, number, {"a": facts(), "b": facts()}, created_at="", by="") for number in (0, 1)]
    assert [spec["code"] for spec in specs] == [{"sha256": CODE.sha256, "cwd": "sub"}, None]


def test_the_commit_of_the_code_is_recorded() -> None:
    code = replace(CODE, commit=Commit("ab" * 20, 2))
    resolved = plan.resolve(made("hosts: [a]", code=code), {"a": facts()})
    spec = node_spec.spec(resolved, 0, {"a": facts()}, created_at="now", by="ann")
    assert spec["code"] == {"sha256": CODE.sha256, "cwd": "sub", "commit": "ab" * 20, "changed": 2}
    assert describe_commit(spec["code"]) == "abababababab, 2 files changed"
    planned = json.loads(json.dumps(description.as_dict(made("hosts: [a]", code=code))))
    assert planned["code"]["commit"] == {"id": "ab" * 20, "changed": 2}
    for other in ({}, {"commit": "<b>", "changed": 1}, {"commit": "ab" * 20, "changed": "x"}):
        assert describe_commit(other) in ("", "abababababab")


def test_words_with_braces_are_the_users_own() -> None:
    read = model.parse("hosts: [a]\nrun: {env: {X: '{node_rank}'}}", "i")
    planned = plan.make(
        read, run_id="R", name="n", command=("train.py", "{master_addr}"), code=CODE, env={}, debug=False
    )
    node = description.as_dict(planned)["nodes"][0]
    assert node["command"] == ["python3", "train.py", "{master_addr}"]
    assert node["env"]["X"] == "{node_rank}"


def test_the_text_of_a_plan_is_as_it_was() -> None:
    text = (GOLDEN / "three_hosts.yaml").read_text()
    assert description.as_text(made(text, {"LR": "1 e-3"}, debug=True)) == (GOLDEN / "three_hosts.txt").read_text()


# --- spares, and hosts that cannot be had

SPARED = "hosts: [a, b, c, {name: s, spare: true}, {name: t, spare: true}]"


def left(text: str, *names: str) -> list[tuple[str, bool]] | None:
    found = plan.without(made(text), names)
    return None if found is None else [(node.host.name, node.host.spare) for node in found.nodes]


def test_spares_come_last_and_have_no_node_rank() -> None:
    shown = description.as_dict(made("hosts: [{name: s, spare: true}, a, b]\nhead: b"))["nodes"]
    assert [(node["host"], node["node_rank"]) for node in shown] == [("b", 0), ("a", 1), ("s", None)]


def test_a_spare_takes_the_place_of_a_host_that_cannot_be_had() -> None:
    assert left(SPARED, "b") == [("a", False), ("s", False), ("c", False), ("t", True)]
    assert left(SPARED, "b", "s") == [("a", False), ("t", False), ("c", False)]
    assert left(SPARED, "b", "c", "s") is None


def test_fewer_hosts_will_do_down_to_the_least_number_but_not_without_the_head() -> None:
    elastic = "hosts: [a, b, c]\nrun: {nnodes: '2:3'}"
    assert left(elastic, "b") == [("a", False), ("c", False)]
    assert left(elastic, "b", "c") is None
    assert left(elastic, "a") is None
    assert left("hosts: [a, b, c]", "b") is None


@pytest.mark.parametrize(
    ("text", "away", "count"),
    [
        ("hosts: [a, b, c]\nrun: {nnodes: 2}", ["b"], 1),
        ("hosts: [a, b, c, d]\nrun: {nnodes: '1:3'}", ["b", "c"], 2),
        ("hosts: [a, b, {name: s, spare: true}, d]\nrun: {nnodes: '1:2'}", ["b"], 0),
        ("hosts: [a, b, {name: s, spare: true}, d]\nrun: {nnodes: '1:2'}", ["b", "s"], 1),
        ("hosts: [a, b, c]\nrun: {nnodes: 2}", ["a"], 0),  # the head
        ("hosts: [a, b, c]", [], 0),
    ],
)
def test_unused_hosts_stand_in_where_spares_do_not(text: str, away: list[str], count: int) -> None:
    unreachable = {name: UnreachableError(f"{name}: no route to host") for name in away}
    assert stand_ins.count_missing(made(text), unreachable) == count
    refused = {name: UsageError(f"{name}: no such user") for name in away}
    assert stand_ins.count_missing(made(text), refused) == 0


# --- what is filled in


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("{run}", "lab"),
        ("--log={host}.log", "--log=b.log"),
        ("{output}/{run}/{host}", "{output}/lab/b"),
        ("{{run}} {{host}} {{output}}", "{run} {host} {{output}}"),
        ('{"run": {"host": [1, {}]}, "n": "{}"}', '{"run": {"host": [1, {}]}, "n": "{}"}'),
        (
            "${run}/${{host}} ${oc.env:HOME} {RUN} {rank} { run }",
            "${run}/${{host}} ${oc.env:HOME} {RUN} {rank} { run }",
        ),
        ("{run:03d} {0} {", "{run:03d} {0} {"),
    ],
)
def test_the_run_and_the_host_are_filled_in_and_nothing_else_in_braces(word: str, filled: str) -> None:
    read = model.parse("hosts: [a, b]\nrun: {env: {MINE: '{host}'}}", "inventory.yaml")
    command = ("-u", "{run}.py", word)
    of = plan.make(read, run_id="R", name="lab", command=command, code=None, env={"WORD": word}, debug=False)
    assert of.nodes[1].command == ("python3", "-u", "{run}.py", filled)
    assert (of.nodes[1].env["WORD"], of.nodes[0].env["MINE"]) == (filled, "a")


@pytest.mark.parametrize(
    ("word", "right"),
    [
        ("--out=$DDP_ORCH_OUTPUT_DIR/out", "--out={output}/out"),
        ("${DDP_ORCH_OUTPUT_DIR}", "{output}"),
        ("$DDP_ORCH_RUN_NAME", "{run}"),
        ("$DDP_ORCH_ATTEMPT", None),
        ("${oc.env:DDP_ORCH_OUTPUT_DIR}", None),
        ("{output}", None),
    ],
)
def test_a_variable_that_no_shell_expands_is_said_with_the_right_spelling(word: str, right: str | None) -> None:
    read = model.parse("hosts: [a, b]", "inventory.yaml")
    for command, env in (("-u", "-m", "lab", word), {}), (("-u", "train.py"), {"WANDB_DIR": word}):
        of = plan.make(read, run_id="R", name="lab", command=command, code=None, env=env, debug=False)
        said = plan.advise_shell_variables(of)
        assert [one.rpartition("; write ")[2].strip("'") for one in said] == ([right] if right else [])


@pytest.mark.parametrize(("word", "read"), [("$RANK", "RANK"), ("${LOCAL_RANK}", "LOCAL_RANK"), ("$RANKS", None)])
def test_a_variable_of_a_rank_is_to_be_read_by_the_script(word: str, read: str | None) -> None:
    inventory = model.parse("hosts: [a, b]", "inventory.yaml")
    command = ("-u", "train.py", "--rank", word)
    of = plan.make(inventory, run_id="R", name="lab", command=command, code=None, env={}, debug=False)
    said = "".join(plan.advise_shell_variables(of))
    assert (f'os.environ["{read}"]' in said) if read else not said


def test_an_election_that_the_chosen_hosts_cannot_hold_is_told() -> None:
    text = "hosts: [a, b, c]\nrun: {max_restarts: 3, head_lost: elect}"
    read = model.parse(text, "inventory.yaml")
    for hosts, warned in (("a,b", True), ("a", False), ("a,b,c", False)):
        few = selection.select(read, hosts)
        of = plan.make(few, run_id="R", name="lab", command=COMMAND, code=CODE, env={}, debug=False)
        assert bool(losses.warn_of_election(of)) == warned


@pytest.mark.parametrize(
    ("run", "away", "warned"),
    [
        ("head_lost: elect, nnodes: '1:3'", ["b"], True),
        ("nnodes: '1:3'", ["b"], True),  # auto
        ("head_lost: stop, nnodes: '1:3'", ["b"], False),
        ("nnodes: '1:3'", ["b", "c"], False),  # one host waits for nobody
    ],
)
def test_an_election_that_is_not_possible_without_unreachable_hosts_is_told(
    run: str, away: list[str], warned: bool
) -> None:
    whole = made(f"hosts: [a, b, c]\nrun: {{max_restarts: 3, {run}}}")
    smaller = plan.without(whole, away)
    assert smaller is not None
    warnings = losses.warn_of_fewer(whole, smaller)
    assert ["head, a, is lost" in warning for warning in warnings] == [True] * warned


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("resume: head, max_restarts: 3", False),
        ("resume: head, max_restarts: 3, nnodes: '2:3'", True),
        ("resume: newest, max_restarts: 3, nnodes: '2:3'", True),
        ("resume: union, max_restarts: 3, nnodes: '2:3'", False),
        ("resume: head, max_restarts: 3, nnodes: '2:3', head_lost: stop", False),
        ("resume: head, max_restarts: 3, nnodes: '2:3', output: /shared", False),
        ("max_restarts: 3, nnodes: '2:3'", False),
    ],
)
def test_snapshots_that_may_be_lost_with_the_head_are_told(keys: str, told: bool) -> None:
    assert bool(losses.note_snapshots(made(f"hosts: [a, b, c]\nrun: {{{keys}}}"))) == told


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"HF_TOKEN": "hf_abc", "WANDB_API_KEY": "x"}, "HF_TOKEN, WANDB_API_KEY"),
        ({"TOKENIZERS_PARALLELISM": "false", "KEYBOARD": "us", "HF_TOKEN": ""}, None),
    ],
)
def test_a_credential_among_plain_variables_is_told(env: dict[str, str], named: str | None) -> None:
    read = model.parse("hosts: [a, b]", "inventory.yaml")
    of = plan.make(read, run_id="R", name="lab", command=("-u", "train.py"), code=None, env=env, debug=False)
    assert [said.partition(":")[0] for said in plan.advise_secrets(of)] == ([named] if named else [])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--wandb-api-key", "0123456789abcdef"), "the argument --wandb-api-key"),
        (("hub.token=hf_0123456789", "--token=hf_0123456789"), "the argument --token, hub.token"),
        (("--tokenizer", "bert-base-uncased", "--pad-token", "<|endoftext|>", "--key", "text", "--password"), None),
    ],
)
def test_a_credential_among_the_arguments_is_told(words: tuple[str, ...], named: str | None) -> None:
    read = model.parse("hosts: [a, b]", "inventory.yaml")
    command = ("-u", "train.py", *words)
    of = plan.make(read, run_id="R", name="lab", command=command, code=None, env={}, debug=False)
    assert [said.partition(":")[0] for said in plan.advise_secrets(of)] == ([named] if named else [])


def test_outputs_on_a_shared_disk_have_a_folder_of_the_run() -> None:
    for text, output in (("hosts: [a]", None), ("hosts: [a]\nrun: {output: /shared/runs/}", "/shared/runs/lab")):
        resolved = plan.resolve(made(text), {"a": facts()})
        assert node_spec.spec(resolved, 0, {"a": facts()}, created_at="now", by="ann")["shared_output"] == output


@pytest.mark.parametrize(
    ("options", "code", "torch", "modules"),
    [
        ("launcher: direct", replace(CODE, names_torch=True), "2.5.1", list(node_spec.AUTO_PRELOAD)),
        ("launcher: direct", CODE, "2.5.1", []),
        ("launcher: direct", None, "2.5.1", list(node_spec.AUTO_PRELOAD)),
        ("launcher: direct", replace(CODE, names_torch=True), None, []),
        ("launcher: mpi", replace(CODE, names_torch=True), "2.5.1", list(node_spec.AUTO_PRELOAD)),
        ("launcher: deepspeed", replace(CODE, names_torch=True), "2.5.1", []),
        ("launcher: node", replace(CODE, names_torch=True), "2.5.1", []),
        ("launcher: torchrun", replace(CODE, names_torch=True), "2.5.1", []),
        ("launcher: direct, preload: none", replace(CODE, names_torch=True), "2.5.1", []),
        ("launcher: direct, preload: [numpy]", CODE, None, ["numpy"]),
    ],
)
def test_torch_is_preloaded_where_ranks_are_forked_and_use_it(
    options: str, code: Code | None, torch: str | None, modules: list[str]
) -> None:
    known = {"a": facts(torch=torch)}
    planned = made(f"hosts: [a]\nrun: {{{options}}}", code=code)
    assert node_spec.spec(plan.resolve(planned, known), 0, known, created_at="", by="")["preload"] == modules


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed", "node"])
def test_a_launcher_that_cannot_preload_refuses_modules(launcher: str) -> None:
    with pytest.raises(UsageError, match=r"run\.preload"):
        made(f"hosts: [a]\nrun: {{launcher: {launcher}, preload: [numpy]}}")


@pytest.mark.parametrize("options", ["launcher: torchrun", "launcher: direct, preload: none"])
def test_modules_that_are_not_imported_cannot_be_kept(options: str) -> None:
    with pytest.raises(UsageError, match=r"run\.warm"):
        made(f"hosts: [a]\nrun: {{{options}, warm: 15m}}")


def test_hosts_with_setup_keep_no_modules() -> None:
    with pytest.raises(UsageError, match=r"run\.warm: .*`setup` of a"):
        made("hosts: [{name: a, setup: [module load cuda]}]\nrun: {launcher: direct, warm: 15m}")


# --- a lost head


@pytest.mark.parametrize(
    ("text", "head_lost"),
    [
        ("hosts: [a, b, c]\nrun: {max_restarts: 3}", "elect"),
        ("hosts: [a, b, {name: c, spare: true}]\nrun: {max_restarts: 3}", "elect"),
        ("hosts: [a, b]\nrun: {max_restarts: 3, witness: c}", "elect"),
        ("hosts: [a, b]\nrun: {max_restarts: 3}", "stop"),
        ("hosts: [a, b, c]\nrun: {max_restarts: 3, head_lost: stop}", "stop"),
        ("hosts: [a, b, c]\nrun: {max_restarts: 3, head_lost: elect, nnodes: 2}", "elect"),  # `add` makes it three
        ("hosts: [a, b, c]\nrun: {max_restarts: 3, nnodes: 2}", "stop"),
        ("hosts: [a, b, c]\nrun: {max_restarts: 3, head_lost: elect, nnodes: 1}", "stop"),
        ("hosts: [a, b, c]", "stop"),
        ("hosts: [a, b, c]\nrun: {max_restarts: 3, rejoin_timeout: 0}", "stop"),
    ],
)
def test_three_machines_of_a_run_with_restarts_elect_their_head(text: str, head_lost: str) -> None:
    resolved = plan.resolve(made(text), {name: facts() for name in ("a", "b", "c")})
    spec = node_spec.spec(resolved, 0, {name: facts() for name in names(resolved)}, created_at="", by="")
    assert spec["head_lost"] == head_lost


# --- a witness

WITNESSED = "hosts: [a, b]\nrun: {max_restarts: 3, secrets: [TOKEN], witness: nas}\nnotify: {command: mail}"


def test_a_witness_comes_last_and_gets_nothing_but_the_run_key() -> None:
    resolved = plan.resolve(made(WITNESSED, {"A": "b"}), {name: facts(torch="2.9.1") for name in ("a", "b", "nas")})
    assert (names(resolved), [node.host.name for node in resolved.team]) == (["a", "b", "nas"], ["a", "b"])
    specs = [
        node_spec.spec(resolved, number, {name: facts() for name in names(resolved)}, created_at="", by="")
        for number in (0, 2)
    ]
    for spec in specs:
        assert (spec["head_lost"], spec["min_nodes"], spec["max_nodes"]) == ("elect", 2, 2)
        assert [(node["host"], node["nproc"], node["ranks"], node["witness"]) for node in spec["nodes"]] == [
            ("a", 1, 1, False),
            ("b", 1, 1, False),
            ("nas", 0, 0, True),
        ]
    assert (specs[1]["nproc"], specs[1]["gpu_ids"], specs[1]["code"], specs[1]["env"]) == (0, [], None, {})
    private = [node_spec.private(resolved, number, run_key=bytes(32), secrets={"TOKEN": "x"}) for number in (1, 2)]
    assert (private[0]["secrets"], private[0]["notify"]["command"]) == ({"TOKEN": "x"}, "mail")
    assert (private[1]["secrets"], private[1]["notify"], private[1]["key"]) == ({}, {}, "00" * 32)


def test_with_a_launcher_that_starts_once_per_host_a_witness_starts_nothing() -> None:
    text = "hosts: [a, b]\ndefaults: {nproc_per_node: 2}\nrun: {max_restarts: 3, witness: nas, launcher: node}"
    resolved = plan.resolve(made(text), {name: facts() for name in ("a", "b", "nas")})
    assert [plan.processes(resolved, node) for node in resolved.nodes] == [1, 1, 0]
    plan.check_ranks(resolved)


@pytest.mark.parametrize(
    ("hosts", "away", "left"),
    [
        ("[a, b, c]", ["nas"], ["a", "b", "c"]),
        ("[a, b]", ["nas"], None),
        ("[a, b, c]", ["c"], ["a", "b", "nas"]),
        ("[a, b]", ["b"], ["a"]),  # nobody else could lead, so there is nothing to vote for
    ],
)
def test_a_run_starts_without_its_witness_only_if_it_can_elect_a_head_all_the_same(
    hosts: str, away: list[str], left: list[str] | None
) -> None:
    text = f"hosts: {hosts}\nrun: {{max_restarts: 3, head_lost: elect, nnodes: '1:3', witness: nas}}"
    smaller = plan.without(made(text.replace("'1:3'", "'1:2'") if hosts == "[a, b]" else text), away)
    assert (None if smaller is None else names(smaller)) == left


def test_the_text_of_a_plan_names_the_witness() -> None:
    text = description.as_text(made(WITNESSED))
    assert "2 hosts" in text.splitlines()[0]
    assert [line.split(" ")[2:] for line in text.splitlines() if line.startswith("nas")] == [
        ["witness,", "no", "ranks"]
    ]
    assert [node["witness"] for node in description.as_dict(made(WITNESSED))["nodes"]] == [False, False, True]
