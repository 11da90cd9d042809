"""The keys of an inventory: one table for the checks, the defaults, the example file and the reference.

Checks each key alone; model.py checks what involves several keys. No IO.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import container, hostnames, launcher_rows, notifications, via
from .host_entries import JUMPS, PYTHON, USER, HostList, hosts_kind, witness_kind
from .nearest_key import nearest_key
from .values import (
    Kind,
    Reading,
    choice,
    duration,
    env,
    env_name,
    items,
    least_most,
    like,
    maybe,
    ports,
    seconds,
    size,
    text,
    truth,
    whole,
    word_or,
)
from .yaml_source import Node, Scalar


@dataclass(frozen=True)
class Key:
    name: str
    kind: Kind
    default: Any  # the value if the file does not set the key
    doc: str  # one line
    example: str = ""  # YAML, for the example file; empty: the default
    default_doc: str = ""  # if the default is not a fixed value
    section: Section | None = None  # the keys inside, if it is a mapping
    was: str = ""  # its old name, which still works


@dataclass(frozen=True)
class Section:
    """A mapping in the file, and every key it may have."""

    name: str  # such as `run.rdzv`; "": the whole file
    keys: tuple[Key, ...]

    def read(self, node: Node, key: str, reading: Reading) -> dict[str, Any]:
        """The value of every key, with defaults. `reading.marks` has the keys that the file sets."""
        known = {name: each for each in self.keys for name in (each.name, each.was) if name}
        values = self.defaults()
        present = set()
        for name, inner, mark, value in reading.entries(node, key):
            if name not in known:
                reading.wrong(mark, inner, f"unknown key; {_hint(name, self)}")
                continue
            current = known[name].name
            if name != current:
                reading.deprecated[mark] = f"{inner} is deprecated; use {current}"
            if current in present:
                reading.wrong(mark, inner, f"duplicate key: {known[name].was} is the old name of {current}")
            present.add(current)
            if _is_unset(value, known[name].kind):
                del reading.marks[inner]
                continue
            values[current] = reading.read(known[name].kind, value, inner, known[name].default)
        return values

    def defaults(self) -> dict[str, Any]:
        return {key.name: key.default for key in self.keys}

    def write(self, value: Any) -> dict[str, Any]:
        """The value as YAML or JSON: an object with these keys as attributes becomes a mapping."""
        return {key.name: key.kind.write(getattr(value, key.name)) for key in self.keys}


def _is_unset(value: Node, kind: Kind) -> bool:
    """`--set run.nnodes=null`, where null is no value: as if the file did not have the key."""
    if value.mark.line >= 0 or not isinstance(value, Scalar) or not value.null:
        return False
    try:
        kind.read(value, "", Reading())
    except ValueError:
        return True
    return False


_NO_KEYS = {
    "run.name": "the name of a run is an option: ddp-orch up --name NAME",
    "hosts.slots": "nproc_per_node is the number of ranks of a host",
    "defaults.slots": "nproc_per_node is the number of ranks of each host",
    "run.command": "set run.script and run.args, or give the command after `--`: ddp-orch up -- COMMAND",
}
"""What task files of other tools have, by key, and what it is here. A key of that name is in another section."""


def _hint(name: str, section: Section) -> str:
    if f"{section.name}.{name}" in _NO_KEYS:
        return _NO_KEYS[f"{section.name}.{name}"]
    if any(name == key.name for key in FILE.keys):
        return "it belongs at the top level of the file"
    places = [other.name for other in (DEFAULTS, *SECTIONS) if any(name == key.name for key in other.keys)]
    if places:
        return f"it belongs under {' or '.join(filter(None, (', '.join(places[:-1]), places[-1])))}"
    known = {key.name: other for other in (*SECTIONS, section) for key in other.keys}
    near = nearest_key(name, [key.name for key in section.keys], list(known))
    if near is None:
        return hostnames.nearest(name, [key.name for key in section.keys])
    other = known[near]
    where = "" if other is section else f", under {other.name}" if other.name else ", at the top level"
    return f"did you mean {near}{where}?"


def _section(name: str, doc: str, *keys: Key) -> Key:
    section = Section(name, keys)
    kind = Kind("a mapping", section.read, section.write, single=False)
    return Key(name.rpartition(".")[2], kind, section.defaults(), doc, section=section)


# Hosts

_host = text("the name or address of a host", hostnames.check)
_port = whole(1, 65535)
_via = text("paramiko, openssh or a command", via.check)
_some_text = like("a string", r"(?s).+")

HOST = Section(
    "hosts",
    (
        Key(
            "name",
            text("the name of a host, or a range such as gpu[01-16]", hostnames.expand),
            (),
            "anything `ssh NAME` understands, or a range: gpu[01-16]",
            "hopper",
            "required",
        ),
        Key(
            "address", _host, None, "the address for SSH; localhost: this machine, without SSH", "10.1.2.3", "the name"
        ),
        Key("user", maybe(USER), None, "null: as in ~/.ssh/config", "ann"),
        Key("port", maybe(_port), None, "port of sshd; null: as in ~/.ssh/config", "22"),
        Key(
            "identity_file",
            maybe(like("an absolute path, or one that starts with ~", r"(?s)[/~].*")),
            None,
            "private key on this machine; null: the agent and ~/.ssh/config",
            "~/.ssh/id_ed25519",
        ),
        Key(
            "proxy_jump",
            maybe(JUMPS),
            None,
            "[user@]host[:port], several separated by commas; null: as in ~/.ssh/config",
            "bastion",
        ),
        Key(
            "via",
            maybe(_via),
            None,
            "paramiko | openssh | a command, such as docker exec -i {host}; null: ssh.via",
            "openssh",
        ),
        Key(
            "cluster_address",
            maybe(_host),
            None,
            "where other hosts reach this one; null: ddp-orch tries its addresses",
            "192.168.1.2",
        ),
        Key(
            "interface",
            like("auto or the name of a network interface", r"[A-Za-z0-9_][A-Za-z0-9._@:-]{0,14}"),
            "auto",
            "network interface of NCCL and Gloo; auto: the fastest network",
        ),
        Key(
            "gpus",
            word_or(
                "auto",
                choice("none"),
                whole(1, 64),
                items("a list such as [0, 2, 5]", whole(0, 1023), unique=True, least=1),
            ),
            "auto",
            "auto | none | a count | [0, 2, 5], which becomes CUDA_VISIBLE_DEVICES",
        ),
        Key(
            "nproc_per_node",
            word_or("auto", whole(1, 1024)),
            "auto",
            "ranks on this host; auto: one per GPU, or one without GPUs",
        ),
        Key("python", PYTHON, "python3", "interpreter with torch; absolute, or on the PATH after setup"),
        Key(
            "setup",
            items("a list of shell lines", _some_text),
            (),
            "shell lines run by `bash -lc` before python",
            "[module load cuda, source ~/venv/bin/activate]",
        ),
        Key(
            "workdir",
            maybe(like("an absolute path", r"(?s)/.*")),
            None,
            "a folder of the host (shared disk) to use in place of sent code",
        ),
        Key(
            "state_dir",
            maybe(like("an absolute path", r"(?s)/.*")),
            None,
            "a private folder of the host for runs and outputs; null: in the home",
        ),
        Key("env", env, {}, "variables, set after setup; override run.env"),
        Key("container", maybe(container.KIND), None, "an image to run in | none; null: run.container"),
        Key("spare", truth, False, "stand by to replace a lost host"),
    ),
)

_OF_WITNESS = ("name", "address", "user", "port", "identity_file", "proxy_jump", "via", "cluster_address", "state_dir")
WITNESS = Section("run.witness", tuple(key for key in HOST.keys if key.name in _OF_WITNESS))

# names and addresses cannot be the same for all hosts
DEFAULTS = Section(
    "defaults", tuple(key for key in HOST.keys if key.name not in ("name", "address", "cluster_address"))
)


# The file

MODULE = like("the name of a module", r"[^\W\d]\w*(\.[^\W\d]\w*)*")

_SSH = _section(
    "ssh",
    "how ddp-orch reaches the hosts",
    Key("via", _via, "paramiko", "paramiko (built in) | openssh (the ssh program) | a command"),
    Key(
        "host_keys",
        choice("strict", "accept-new"),
        "strict",
        "strict | accept-new: add unknown keys, never changed ones",
    ),
    Key("connect_timeout", seconds(0.1, 3600), 20.0, "seconds to connect and log in to a host"),
    Key("parallel", whole(1, 1024), 64, "hosts to connect to at the same time"),
    Key("jump_parallel", whole(1, 1024), 8, "simultaneous logins to hosts behind the same jump host"),
)

_RDZV = _section(
    "run.rdzv",
    "rendezvous of the nodes",
    Key(
        "backend", choice("static", "c10d"), "static", "static: rank 0 on the head, ranks in the order of hosts | c10d"
    ),
    Key("port", word_or("auto", whole(1024, 65535)), "auto", "auto: a free port of run.ports"),
)

_KEEP = _section(
    "run.keep",
    "finished runs to keep on the hosts; each `up` and `prune` deletes the others",
    Key("runs", whole(1, 1_000_000), 10, "number of newest runs to keep"),
    Key("days", whole(1, 36_500), 14, "maximum age of these runs, in days"),
    Key(
        "outputs",
        word_or("all", whole(1, 36_500)),
        "all",
        "days to keep outputs of runs without a name; all: forever",
    ),
    Key("log_size", size, 2 << 30, "maximum size of the log of a run on one host", was="journal"),
)

_RUN = _section(
    "run",
    "what to run",
    Key(
        "script",
        maybe(like("a file, absolute or relative to the folder of this file", r"(?s)[^~-].*")),
        None,
        "relative to this file; null: the bundled trainer",
    ),
    Key(
        "args",
        items("a list of strings", text('a string ("" for an empty one)')),
        (),
        "arguments of the script; {output} {run} {host} are replaced",
    ),
    Key(
        "launcher",
        text("the name of a launcher", launcher_rows.check_name),
        "torchrun",
        "torchrun | direct | node | accelerate | ... (docs/launchers.md)",
    ),
    Key(
        "preload",
        word_or("auto", choice("none"), items("a list of modules", MODULE, unique=True, least=1)),
        "auto",
        "modules to import once per host: auto (torch if used) | none | [NAME, ...]",
    ),
    Key(
        "warm",
        maybe(duration(1, 86_400)),
        None,
        "time to keep these modules in memory for the next run, such as 15m; null: none",
    ),
    Key("container", container.KIND, container.NONE, "an image to run in (docs/guides/containers.md) | none"),
    Key("nnodes", word_or("auto", least_most), "auto", "number of hosts; auto: all but spares | N | MIN:MAX"),
    Key("env", env, {}, "variables of every rank; {output} {run} {host} are replaced"),
    Key(
        "secrets",
        items("a list of names of variables", text("the name of a variable", env_name), unique=True),
        (),
        "names of variables; their values come from your environment",
        "[WANDB_API_KEY]",
    ),
    Key(
        "output",
        maybe(like("an absolute path", r"(?s)/.*")),
        None,
        "folder for outputs on a disk shared by all hosts; null: a local one",
    ),
    _RDZV,
    Key("ports", ports, (20000, 29999), "ports for the rendezvous and for connections between hosts"),
    Key(
        "sync",
        word_or("auto", choice("none"), items("a list of paths", _some_text, unique=True, least=1)),
        "auto",
        "code to send: auto (repository or folder of the script) | none | [auto, paths]",
    ),
    Key("grace", seconds(0, 86_400), 30.0, "seconds between SIGTERM and SIGKILL when a run is stopped"),
    Key("max_restarts", whole(0, 1_000_000), 0, "restarts after a failure"),
    Key("lease", seconds(2, 600), 8.0, "seconds without a message until a host counts as lost"),
    Key("rejoin_timeout", seconds(0, 31_536_000), 600.0, "seconds to wait for lost hosts; only with max_restarts"),
    Key(
        "resume",
        choice("none", "head", "newest", "union"),
        "none",
        "outputs to copy to all hosts: none | head | newest | union (docs/resume.md)",
    ),
    Key("resume_limit", size, 100 << 30, "maximum size of the outputs that one host gets before an attempt"),
    Key("resume_timeout", seconds(1, 31_536_000), 1800.0, "seconds without progress until copying these outputs fails"),
    Key("memory_limit", maybe(size), None, "size of snapshots in memory on each host; null: none (docs/memory.md)"),
    Key(
        "head_lost",
        choice("auto", "elect", "stop"),
        "auto",
        "elect: others elect a new head; stop: they do not; auto: elect if 3 start a run",
    ),
    Key("witness", maybe(witness_kind(WITNESS)), None, "a machine that only votes for a new head; null: none"),
    Key(
        "autostart",
        choice("none", "cron", "systemd"),
        "none",
        "how a rebooted host comes back into the run by itself: none | cron | systemd",
    ),
    Key(
        "walltime",
        maybe(word_or("auto", duration(1, 31_536_000))),
        "auto",
        "save a snapshot and stop in time: 4h | auto: before the job ends | null: never",
    ),
    Key("snapshot_signal", choice("USR1", "USR2", "HUP"), "USR1", "signal that makes the script save a snapshot"),
    Key(
        "stall_timeout",
        maybe(seconds(1, 31_536_000)),
        None,
        "seconds without output until an attempt is stopped; null: warn at 600",
    ),
    _KEEP,
)

_NOTIFY = _section(
    "notify",
    "messages about a run",
    Key("webhook", maybe(notifications.WEBHOOK), None, "URL of Slack, Discord, Teams, ntfy or a compatible service"),
    Key("mail", maybe(notifications.MAIL), None, "mailto:ADDRESS, or smtp[s]://[USER:PASSWORD@]SERVER/ADDRESS"),
    Key("command", maybe(_some_text), None, "command run by sh on the head, with JSON on stdin"),
    Key("events", notifications.EVENTS, notifications.USUAL, "start, restart, wait, stall, loss, walltime, end"),
    Key("bell", truth, False, "ring the bell of the terminal that follows the run"),
    Key("desktop", truth, False, "show a message on the desktop of the terminal that follows the run"),
)

FILE = Section(
    "",
    (
        Key(
            "hosts",
            hosts_kind(HOST),
            HostList(),
            "names, or mappings with the keys below; any 2 of [a, b, c]: two that are free",
            default_doc="required",
            section=HOST,
        ),
        Key("from", maybe(text("a source of hosts")), None, 'in place of hosts: a source such as "@slurm"'),
        Key("head", _host, None, "host of rank 0 and of the rendezvous", "lovelace", "the first host"),
        Key(
            "defaults",
            Kind("a mapping", DEFAULTS.read, single=False),
            DEFAULTS.defaults(),
            "values for all hosts; any key except name, address, cluster_address",
            "{}",
            "none",
        ),
        _SSH,
        _RUN,
        _NOTIFY,
        Key("launchers", launcher_rows.KIND, {}, "your own launchers, by name (docs/launchers.md)", "{}", "none"),
    ),
)

SECTIONS = (FILE, HOST, *(key.section for key in (_SSH, _RUN, _RDZV, _KEEP, _NOTIFY) if key.section))
