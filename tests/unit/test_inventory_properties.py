"""What holds for any inventory, and for anything that is taken for one."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import InventoryError
from orchestrator.inventory import container, model, writing
from orchestrator.inventory.container import Container
from orchestrator.inventory.model import Host, Inventory, Keep, Notify, RendezvousOptions, RunOptions, SshOptions
from orchestrator.inventory.schema import SECTIONS

KEYS = sorted({key.name for section in SECTIONS for key in section.keys})

# Texts near to YAML: its signs, our keys, and the characters that break parsers, terminals and shells
SIGNS = [*":-?[]{},#&*!|>'\"%@` \n\t~", ": ", "- ", "\n  ", "<<: ", "---\n", "&a ", "*a", "!!str ", "%YAML 1.1\n"]
TRAPS = [
    "null",
    "true",
    "22:22",
    "022",
    "gpu[1-3]",
    "localhost",
    "\0",
    "\x1b[2J",
    "\ufeff",
    "\u2028",
    '"\\u',
    "ü",
    "😀",
]
SNIPPETS = st.sampled_from([*KEYS, *SIGNS, *TRAPS])
NEARLY_YAML = st.lists(st.one_of(SNIPPETS, st.text(max_size=3)), max_size=40).map("".join)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["auto", "none", "a", "gpu[1-3]"]),
)
STRUCTURES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=3)), inner, max_size=5),
    ),
    max_leaves=25,
)


def parses_or_is_refused(text: str) -> None:
    try:
        model.parse(text, "inventory.yaml")
    except InventoryError as error:
        for line in str(error).splitlines():
            assert line.startswith(("inventory.yaml:", "  "))  # the advice for a task of SkyPilot has more lines
            assert all(char.isprintable() for char in line)
        assert str(error).startswith("inventory.yaml:")


@settings(max_examples=200, deadline=None)
@given(NEARLY_YAML)
@example("hosts: [a]\n" + "run: " * 3000)
@example("? " * 3000)
@example("!%1b[2J")
@example('"\\U00110000"')
@example("%YAML " + "1" * 5000 + ".1\n--- a")
@example("hosts: [{name: a, env: &e {A: *e}}]")
@example("{run: null, secrets: null}")
@example("{run.env: 1, run.env.A: 2, run: {secrets: [A]}, hosts: [a]}")
def test_any_text_parses_or_is_refused_with_its_place(text: str) -> None:
    parses_or_is_refused(text)


@settings(max_examples=200, deadline=None)
@given(STRUCTURES)
def test_any_structure_parses_or_is_refused_with_its_place(structure: Any) -> None:
    parses_or_is_refused(yaml.safe_dump(structure, allow_unicode=True))


@settings(max_examples=50, deadline=None)
@given(
    st.fixed_dictionaries(
        {"hosts": st.just(["a", "b"])}, optional=dict.fromkeys(("head", "defaults", "run", "ssh"), STRUCTURES)
    )
)
def test_any_structure_beside_good_hosts_parses_or_is_refused_with_its_place(structure: Any) -> None:
    parses_or_is_refused(yaml.safe_dump(structure))


def words(alphabet: str, first: str, most: int) -> st.SearchStrategy[str]:
    return st.builds(str.__add__, st.sampled_from(first), st.text(alphabet, max_size=most - 1))


ALNUM = string.ascii_letters + string.digits
NAMES = words(ALNUM + "._%-", ALNUM, 254)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
SOME_TEXTS = TEXTS.filter(bool)
PATHS = TEXTS.map("/".__add__)
VARIABLES = words(ALNUM + "_", string.ascii_letters + "_", 20).map("V".__add__)
ENVS: st.SearchStrategy[Mapping[str, str]] = st.dictionaries(VARIABLES, TEXTS, max_size=4)
VIAS = st.sampled_from(["paramiko", "openssh"])
SECONDS = st.floats(1, 3600).map(lambda value: round(value, 3))


@st.composite
def hosts(draw: st.DrawFn, name: str) -> Host:
    gpus = draw(
        st.one_of(
            st.just("auto"),
            st.just("none"),
            st.integers(1, 64),
            st.lists(st.integers(0, 1023), min_size=1, max_size=8, unique=True).map(tuple),
        )
    )
    most = len(gpus) if isinstance(gpus, tuple) else gpus if isinstance(gpus, int) else 1024
    return Host(
        name=name,
        address=draw(NAMES),
        user=draw(st.none() | words(ALNUM + "_.-", string.ascii_letters + "_", 32)),
        port=draw(st.none() | st.integers(1, 65535)),
        identity_file=draw(st.none() | PATHS | TEXTS.map("~".__add__)),
        proxy_jump=draw(st.none() | st.sampled_from(["jump-x", "ann@x:22,y", "fe80::1"])),
        via=draw(VIAS),
        cluster_address=draw(st.none() | NAMES),
        interface=draw(st.just("auto") | words(ALNUM + "._@:-", ALNUM, 15)),
        gpus=gpus,
        nproc_per_node=draw(st.just("auto") | st.integers(1, most)),
        python=draw(PATHS | words(ALNUM + "._- ", ALNUM, 20)),
        setup=tuple(draw(st.lists(SOME_TEXTS, max_size=3))),
        workdir=draw(st.none() | PATHS),
        state_dir=draw(st.none() | PATHS),
        env=draw(ENVS),
        container=draw(CONTAINERS),
        spare=False,
    )


ENTERED = st.builds(
    Container,
    image=st.just(""),
    enter=words(ALNUM + "_.-", ALNUM, 64),
    engine=st.sampled_from(["auto", "docker"]),
    mounts=st.just(()),
    options=st.just(()),
    env=ENVS,
)
CONTAINERS = (
    st.just("none")
    | ENTERED
    | st.builds(
        Container,
        enter=st.just(""),
        env=ENVS,
        image=st.sampled_from(["pytorch:2", "nvcr.io/nvidia/pytorch:26.05-py3", "x@sha256:" + "0" * 64]),
        engine=st.sampled_from(["auto", "podman"]),
        mounts=st.sampled_from([(), ("/data:ro", "/a b:/b")]),
        options=st.sampled_from([(), ("--privileged", "--env=A=b c")]),
    )
)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    names = draw(st.lists(NAMES.map("h".__add__).map(lambda name: name[:254]), min_size=1, max_size=3, unique=True))
    nodes = draw(st.integers(1, len(names)))
    env = draw(ENVS)
    own = tuple(draw(hosts(name)) for name in names)
    contained = any(host.container != "none" for host in own)
    taken = set(env).union(*(host.env for host in own), *(container.variables(host.container) for host in own))
    low, high = sorted(draw(st.tuples(st.integers(1024, 65535), st.integers(1024, 65535))))
    backend = draw(st.sampled_from(["static", "c10d"]))
    return Inventory(
        path="inventory.yaml",
        hosts=own,
        head=draw(st.sampled_from(names)),
        ssh=SshOptions(
            via=draw(VIAS | st.just("docker exec -i {host}")),
            host_keys=draw(st.sampled_from(["strict", "accept-new"])),
            connect_timeout=draw(SECONDS),
            parallel=draw(st.integers(1, 1024)),
            jump_parallel=draw(st.integers(1, 1024)),
        ),
        run=RunOptions(
            script=draw(st.none() | PATHS | TEXTS.map("s".__add__)),
            args=tuple(draw(st.lists(TEXTS, max_size=4))),
            launcher=draw(st.sampled_from(["torchrun", "direct"])),
            nnodes=draw(st.just("auto") | st.just((nodes, nodes))),
            env=env,
            secrets=tuple(name for name in draw(st.lists(VARIABLES, max_size=3, unique=True)) if name not in taken),
            output=draw(st.none() | PATHS),
            rdzv=RendezvousOptions(backend=backend, port=draw(st.just("auto") | st.integers(1024, 65535))),
            ports=(low, high),
            sync=draw(
                st.sampled_from(["auto", "none"]) | st.lists(SOME_TEXTS, min_size=1, max_size=3, unique=True).map(tuple)
            ),
            grace=draw(SECONDS),
            max_restarts=0,
            lease=draw(st.integers(2, 600).map(float)),
            rejoin_timeout=draw(SECONDS),
            resume=draw(st.sampled_from(["none", "newest", "union", *(["head"] if backend == "static" else [])])),
            resume_limit=draw(st.integers(1, 999999)) * draw(st.sampled_from([1 << 10, 1 << 20, 1 << 30, 1 << 40])),
            resume_timeout=draw(SECONDS),
            memory_limit=draw(st.none() | st.integers(1, 999999).map(lambda size: size << 20)),
            preload=draw(st.sampled_from(["auto", "none", *([] if contained else [("numpy", "torch.nn")])])),
            container="none",
            warm=None,  # not with `setup`
            head_lost=draw(st.sampled_from(["auto", "stop"])),
            witness=None,
            autostart="none",
            walltime=draw(st.none() | st.integers(1, 31_536_000).map(float)),
            snapshot_signal=draw(st.sampled_from(["USR1", "USR2", "HUP"])),
            stall_timeout=None,
            keep=Keep(
                runs=draw(st.integers(1, 1000)),
                days=draw(st.integers(1, 1000)),
                outputs=draw(st.just("all") | st.integers(1, 1000)),
                log_size=draw(st.integers(1, 999999)) * draw(st.sampled_from([1 << 10, 1 << 20, 1 << 30, 1 << 40])),
            ),
        ),
        notify=Notify(webhook=None, mail=None, command=None, events=("end",), bell=False, desktop=True),
        launchers={},
    )


@settings(max_examples=50, deadline=None)
@given(inventories())
def test_what_config_prints_is_the_same_inventory(one: Inventory) -> None:
    assert replace(model.parse(writing.render(one), "other.yaml"), path=one.path) == one
