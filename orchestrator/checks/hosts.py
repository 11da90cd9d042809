"""Check the facts of all hosts for what would break a run. Pure.

The checks of the hosts themselves are here; those of Python, GPUs and networks are in other modules of this package,
and those of connections between hosts in runs/reach.py.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import median

from ..answers.facts import Facts, Python
from ..answers.hello import Hello
from ..output.console import duration
from ..output.finding import Finding, Severity
from ..output.lines import rfc3339, whole_seconds
from ..output.mask import hide_credentials
from ..output.terminal import one_line
from ..plan.plan import Node, Plan, find_script_arguments
from ..ssh.pipe import ConnectFailure, OtherKey, fill_in_members
from . import gpus, network, python
from .findings import Findings, shell_word
from .reliability import find_unreliable

MIB, GIB = 1 << 20, 1 << 30
STATE_LEAST, DISK_LOW, FILES_LOW = 64 * MIB, GIB, 1000
SHM_LOW = 256 * MIB
CLOCK_SKEW = 1.0  # s
ENABLE_LINGER = "loginctl enable-linger; if that is denied: sudo loginctl enable-linger $USER"
NOFILE_LEAST, NOFILE_LOW, NPROC_LOW = 256, 1024, 512
LIMIT_ENOUGH = 65536  # of open files and of processes
MEMLOCK_LEAST = 64 * MIB


def check_hosts(
    plan: Plan,
    facts: Mapping[str, Facts],
    hellos: Mapping[str, Hello],
    clocks: Mapping[str, tuple[float, float]] | None = None,
    absent: Mapping[str, python.Absence] | None = None,
    sent: Mapping[str, str] | None = None,
) -> tuple[Finding, ...]:
    """The findings about all hosts of the plan that have facts, errors first.

    By host: `facts`, the answer of its probe; `hellos`, the first answer of its node program; `clocks`, the least and
    the most seconds by which its clock may be ahead of the controller's. `absent`, by module: what is known about those
    that hosts lack. `sent`: paths among the arguments that were sent with the code, and where ranks find them.
    """
    findings = Findings()
    machines = [node for node in plan.nodes if node.host.name in facts]
    nodes = [node for node in machines if not node.host.witness]  # those that may get ranks
    of_nodes = {node.host.name: facts[node.host.name] for node in nodes}
    python.check_pythons(plan, nodes, of_nodes, absent or {}, findings)
    for node in machines:
        fact = facts[node.host.name]
        _state_folder(node, hellos[node.host.name], findings)
        _hung(node, fact, findings)
        _disks(node, fact, findings)
        _leftovers(node, fact, findings)
        _autostart(plan, node, fact, findings)
        _login(plan, node, fact, findings)
        _init(node, fact, findings)
    for node in nodes:
        fact = facts[node.host.name]
        _folders(node, fact, findings)
        _memory(plan, node, fact, findings)
        _shared_output(plan, node, fact, findings)
        _limits(node, fact, findings)
        _notify(plan, node, fact, findings)
    _unreliable(machines, facts, findings)
    _same_machine(machines, hellos, findings)
    _shared_home(nodes, facts, hellos, findings)
    _clocks(
        {node.host.name: clocks[node.host.name] for node in machines if clocks and node.host.name in clocks}, findings
    )
    _paths(plan, nodes, facts, sent or {}, findings)
    gpus.check_gpus(plan, nodes, facts, findings)
    network.check_network(plan, nodes, facts, findings)
    return findings.all()


def report_other_keys(keys: Mapping[str, OtherKey]) -> tuple[Finding, ...]:
    """The findings about hosts that refused the key set in the inventory and accepted another one."""
    findings = Findings()
    for host, key in keys.items():
        install = f"ssh-copy-id -i {shell_word(key.named)} {shell_word(host)}"
        fix = f"set identity_file to the right key, or install this one: {install}"
        findings.add("warning", "ssh-auth-denied", host, str(key), fix, f"try: ssh {host}")
    return findings.all()


def report_failures(failures: Mapping[str, Exception]) -> tuple[Finding, ...]:
    """The findings about hosts that gave no facts."""
    findings = Findings()
    groups: dict[str, list[Exception]] = {}
    for failure in failures.values():
        if isinstance(failure, ConnectFailure):
            groups.setdefault(failure.group_message, []).append(failure)
    for host, failure in failures.items():
        code = str(getattr(failure, "code", "unknown"))
        if isinstance(failure, ConnectFailure):
            reason, fix = failure.reason, failure.fix
            group = groups[failure.group_message]
            if len(group) > 1:
                reason, fix = failure.group.reason, fill_in_members(failure.group.fix, group)
            findings.add("error", code, host, f"{failure.phase}: {reason}", fix, f"try: ssh {host}")
        else:
            problem, fix = getattr(failure, "problem", str(failure)), getattr(failure, "fix", "")
            look = getattr(failure, "look", "")
            evidence = f"try: ssh {host}{look and ' ' + shlex.quote(look)}"
            findings.add("error", code, host, problem.removeprefix(f"{host}: "), fix, evidence)
    return findings.all()


def _state_folder(node: Node, hello: Hello, findings: Findings) -> None:
    """The usual state folder is unusable, so the runs recorded there and their locks are not seen."""
    for why in hello.passed_over:
        message = f"{why}; runs are now recorded in {hello.state or 'another folder'}, so earlier runs are not visible"
        fix = "make the folder yours and private (chown, chmod 700), or remove it"
        seen = f"state folder: {why}"
        findings.add("warning", "state-folder-unusable", node.host.name, message, fix, seen)


def _folders(node: Node, fact: Facts, findings: Findings) -> None:
    workdir = node.host.workdir
    if workdir and not fact.workdir:
        fix = f"create or mount it there (ls -d {workdir}), or remove workdir, so that ddp-orch sends the code"
        message = f"workdir {workdir} is not a folder on this host"
        findings.add("error", "remote-workdir-missing", node.host.name, message, fix, f"ls -d {workdir}: not a folder")


def _hung(node: Node, fact: Facts, findings: Findings) -> None:
    for path in fact.hung:
        message = f"{path} does not respond: its file server may be down"
        fix = "restart its file server, or unmount it; `df` without arguments shows which mount hangs"
        findings.add("error", "filesystem-hung", node.host.name, message, fix, f"stat {path}: no answer")


def _shared_output(plan: Plan, node: Node, fact: Facts, findings: Findings) -> None:
    output = plan.inventory.run.output
    if output and (why := fact.paths.get(output)):
        fix = (
            f"mount it there, or create it: mkdir -p {shell_word(output)}; all hosts must share the disk of run.output"
        )
        message = f"run.output {output}: {why}"
        findings.add("error", "shared-output-missing", node.host.name, message, fix, f"ls -d {output}: {why}")


def _disks(node: Node, fact: Facts, findings: Findings) -> None:
    name, disks = node.host.name, fact.disks
    home = disks.home
    if home is not None and disks.state is not None and home == replace(disks.state, path=home.path):
        home = None  # one finding per disk
    of_ranks = () if node.host.witness else ((home, 0), (disks.tmp, 0))
    for disk, error_below in ((disks.state, STATE_LEAST), *of_ranks):
        if disk is None:
            continue
        evidence = f"df {disk.path}: {disk.free // MIB} MiB of {disk.total // MIB} MiB free"
        mount = f"df --output=target {shell_word(disk.path)} | tail -n 1"
        look = shlex.quote(f'du -xh --max-depth=2 "$({mount})" 2> /dev/null | sort -h | tail -n 20')
        fix = (
            "see what runs take: ddp-orch ps INVENTORY --all --size; "
            "delete outputs of one: ddp-orch prune INVENTORY --outputs --run RUN; "
            f"find other large files: ddp-orch exec INVENTORY -- {look}"
        )
        if disk.free < DISK_LOW:
            severity: Severity = "error" if disk.free < error_below else "warning"
            message = f"the disk of {disk.path} has only {disk.free // MIB} MiB left"
            findings.add(severity, "disk-full", name, message, fix, evidence)
        elif disk.free_files is not None and disk.free_files < FILES_LOW:
            message = f"the disk of {disk.path} has room for only {disk.free_files} more files"
            findings.add("warning", "disk-full", name, message, fix, f"df -i {disk.path}")
    shm = disks.shm
    if shm is not None and shm.free < SHM_LOW and not node.host.witness:
        message = f"{shm.path} has {shm.free // MIB} MiB free: data-loader workers and NCCL may need more"
        fix = "sudo mount -o remount,size=50% /dev/shm; in a container: --shm-size=8g or --ipc=host"
        evidence = f"df /dev/shm: {shm.free // MIB} MiB of {shm.total // MIB} MiB free"
        findings.add("warning", "nccl-shm-exhausted", name, message, fix, evidence)


def _memory(plan: Plan, node: Node, fact: Facts, findings: Findings) -> None:
    limit, shm = plan.inventory.run.memory_limit, fact.disks.shm
    if limit is None or shm is None or shm.free >= limit:
        return
    message = f"run.memory_limit is {limit // MIB} MiB, but only {shm.free // MIB} MiB of memory are free in {shm.path}"
    fix = "lower run.memory_limit, end what uses the memory (ls -l /dev/shm; free -m), or make /dev/shm larger: "
    fix += "sudo mount -o remount,size=80% /dev/shm; in a container: --shm-size=64g"
    evidence = f"df /dev/shm, free: {shm.free // MIB} MiB"
    findings.add("error", "memory-dir-unusable", node.host.name, message, fix, evidence)


def _limits(node: Node, fact: Facts, findings: Findings) -> None:
    name, limits = node.host.name, fact.python.limits if isinstance(fact.python, Python) else {}
    nofile, nproc, memlock = (limits.get(key) for key in ("nofile", "nproc", "memlock"))
    if nofile is not None and nofile < NOFILE_LOW:
        severity: Severity = "error" if nofile < NOFILE_LEAST else "warning"
        message = f"only {nofile} open files are allowed"
        findings.add(severity, "limit-nofile", name, message, _raise_limit("nofile", limits), f"ulimit -n: {nofile}")
    if nproc is not None and nproc < NPROC_LOW:
        message = f"only {nproc} processes and threads are allowed"
        findings.add("warning", "limit-nproc", name, message, _raise_limit("nproc", limits), f"ulimit -u: {nproc}")
    pids = fact.cgroup_pids
    if pids is not None and pids < NPROC_LOW:
        message = f"the control group allows only {pids} processes and threads"
        evidence = f"cat /sys/fs/cgroup/pids.max: {pids}"
        findings.add(
            "warning", "limit-nproc", name, message, "raise the limit; in a container: --pids-limit=-1", evidence
        )
    active = network.active_rdma(fact)
    if active and memlock is not None and memlock < MEMLOCK_LEAST:
        message = f"only {memlock >> 10} KiB of memory may be locked, but {active[0].device} needs more for RDMA"
        fix = "root adds `* - memlock unlimited` to /etc/security/limits.conf; in a container: --ulimit memlock=-1"
        findings.add("error", "nccl-ib-memlock", name, message, fix, f"ulimit -l: {memlock >> 10}")


def _raise_limit(name: str, limits: Mapping[str, int | None]) -> str:
    """A line of `setup` that raises a limit beyond the hard one fails, and so do the ranks."""
    soft, hard, option = limits[name], limits.get(f"{name}_hard"), {"nofile": "n", "nproc": "u"}[name]
    if hard is None or hard >= LIMIT_ENOUGH:
        return f"add setup: [ulimit -{option} {LIMIT_ENOUGH}]"
    root = f"root adds `* - {name} {LIMIT_ENOUGH}` to /etc/security/limits.conf; in a container: --ulimit"
    root += f" {name}={LIMIT_ENOUGH}"
    if soft == hard:
        return f"raise the hard limit, which is {hard}, too: {root}"
    return f'add setup: [ulimit -{option} "$(ulimit -H{option})"]; for more than {hard}, {root}'


def _leftovers(node: Node, fact: Facts, findings: Findings) -> None:
    name = node.host.name
    if fact.orphans:
        pids = ", ".join(str(process.pid) for process in fact.orphans[:5])
        message = "processes of a finished run are still running"
        evidence = f"{fact.orphans[0].run_id}: pid {pids}: {hide_credentials(fact.orphans[0].command)}"
        fix = "ddp-orch kill --leftovers INVENTORY"
        findings.add("warning", "orphan-workers", name, message, fix, evidence)
    if isinstance(fact.python, Python) and fact.python.build_locks == "kernel":
        return  # this torch ignores lock files that no process holds
    for lock in fact.stale_locks:
        message = f"{lock} was left by an interrupted build; every process that builds the extension will wait for it"
        findings.add("warning", "jit-extension-lock", name, message, f"rm {shell_word(lock)}", f"ls {lock}")


def _notify(plan: Plan, node: Node, fact: Facts, findings: Findings) -> None:
    scheme = (plan.inventory.notify.webhook or "https").partition("://")[0].lower()
    for key, why in fact.notify.items():
        fix = {
            "webhook": f"make it reachable from this host, or set {scheme}_proxy in its environment",
            "mail": "make the mail server reachable from this host, or install sendmail there",
            "command": "install it there, or set its full path",
        }.get(key, "")
        fix += "\nddp-orch notify INVENTORY --test"
        message = f"notify.{key} would fail: {why}"
        findings.add("warning", "notify-failed", node.host.name, message, fix, f"notify.{key}: {why}")


def _autostart(plan: Plan, node: Node, fact: Facts, findings: Findings) -> None:
    kind, login = plan.inventory.run.autostart, fact.login
    if fact.autostart is not None:
        message = f"run.autostart is {kind}, but that cannot be used: {fact.autostart}"
        fix = "install cron there, or ask an administrator to allow it for you (cron.allow)"
        if kind == "systemd":
            fix = "set run.autostart to cron, if the hosts have it"
        fix += ", or remove run.autostart"
        findings.add("error", "autostart-unusable", node.host.name, message, fix, f"{kind}: {fact.autostart}")
    elif fact.cron_runs is False:
        message = "run.autostart is cron, but no cron daemon seems to run: after a reboot, nothing would start the run"
        fix = "start cron there (in a container, with its entrypoint), or use `ddp-orch revive` after a reboot"
        findings.add("warning", "autostart-unusable", node.host.name, message, fix, "pgrep cron: nothing")
    elif kind == "systemd" and login is not None and not login.linger:
        message = "run.autostart is systemd, but without lingering your units start only when you log in"
        seen = "loginctl show-user --property=Linger: Linger=no"
        findings.add("error", "autostart-unusable", node.host.name, message, ENABLE_LINGER, seen)


def _login(plan: Plan, node: Node, fact: Facts, findings: Findings) -> None:
    """A run has to outlive the login that starts it."""
    name, login = node.host.name, fact.login
    if login is None:
        return
    if login.kills and not (login.scope and login.linger):
        message = "systemd-logind kills the processes of a login when it ends, and so the run"
        fix = ENABLE_LINGER
        if not login.scope:
            message += "; systemd-run --user --scope, which would prevent this, does not work"
            fix = (
                "root sets KillUserProcesses=no in /etc/systemd/logind.conf and runs: systemctl restart systemd-logind"
            )
        seen = "loginctl show-user --property=Linger: " + ("Linger=yes" if login.linger else "Linger=no")
        findings.add("error", "login-kills-run", name, message, fix, seen)
    takes_limit = plan.inventory.source == "@slurm" and plan.inventory.run.walltime is not None
    if login.slurm_adopts and not takes_limit:
        message = "PAM puts logins into a job of Slurm: the run ends with the job"
        fix = "set run.walltime below the time limit of the job, so that the run saves a snapshot before it"
        findings.add("note", "login-in-slurm-job", name, message, fix, "grep pam_slurm_adopt /etc/pam.d/sshd: found")


def _init(node: Node, fact: Facts, findings: Findings) -> None:
    if fact.lazy_init is not None:
        message = f"process 1 ({one_line(fact.lazy_init)}) does not reap processes: every run leaves a zombie there"
        fix = "start the container with an init: --init (docker, podman), or tini as its first program"
        findings.add("warning", "zombies-not-reaped", node.host.name, message, fix, "ps -A -o stat,comm | grep ^Z")


def _unreliable(nodes: list[Node], facts: Mapping[str, Facts], findings: Findings) -> None:
    for host in find_unreliable({node.host.name: facts[node.host.name].ledger for node in nodes}):
        message = f"{host}; the last failure: {host.last.what}"
        fix = f"ddp-orch diagnose {host.run_id}; meanwhile make the host a spare, or exclude it with --hosts"
        if host.last.code == "host-lost":
            fix += "\nfor a spot host, lost now and then, set run.max_restarts, and run.nnodes MIN:MAX or spares"
        seen = (
            f"attempt {host.last.attempt} of run {host.run_id} at {whole_seconds(rfc3339(host.last.at))}: "
            f"{shell_word(host.last.code)}"
        )
        findings.add("warning", "host-unreliable", host.host, message, fix, seen)


def _same_machine(nodes: list[Node], hellos: Mapping[str, Hello], findings: Findings) -> None:
    """Two names of one machine: a run would use its GPUs and ports twice."""
    names: dict[tuple[object, ...], str] = {}
    for node in nodes:
        hello = hellos[node.host.name]
        identity = (hello.boot_id, hello.machine_id, *hello.state_inode)
        if identity in names:
            message = f"is the same machine as {names[identity]}"
            fix = "remove one of the two; for more ranks on a host, set nproc_per_node"
            evidence = f"sysctl kernel.random.boot_id: {hello.boot_id}"
            findings.add("error", "duplicate-host", node.host.name, message, fix, evidence)
        names.setdefault(identity, node.host.name)


def _shared_home(
    nodes: list[Node], facts: Mapping[str, Facts], hellos: Mapping[str, Hello], findings: Findings
) -> None:
    """A shared home is allowed, but so are its caches shared: builds lock each other, and may be slow."""
    machines: dict[tuple[object, ...], set[str]] = {}
    for node in nodes:
        hello = hellos[node.host.name]
        machines.setdefault(hello.state_inode, set()).add(hello.machine_id)
    for node in nodes:
        home = facts[node.host.name].disks.home
        shares_state = len(machines[hellos[node.host.name].state_inode]) > 1
        if home is not None and (home.shared or shares_state) and "TORCH_EXTENSIONS_DIR" not in node.env:
            message = f"the home folder is on a disk shared with other hosts ({home.kind})"
            fix = "if scripts build torch extensions, set env: {TORCH_EXTENSIONS_DIR: /tmp/torch_extensions}"
            findings.add("note", "home-on-shared-disk", node.host.name, message, fix, f"df -T {home.path}")


def _clocks(clocks: Mapping[str, tuple[float, float]], findings: Findings) -> None:
    if not clocks:
        return
    middles = [(least + most) / 2 for least, most in clocks.values()]
    usual = median([0.0, *middles])  # 0.0 is the clock of the controller
    for host, (least, most) in clocks.items():
        skew = least - usual if least > usual else most - usual if most < usual else 0.0
        if abs(skew) > CLOCK_SKEW:
            direction = "ahead of" if skew > 0 else "behind"
            message = f"its clock is {duration(abs(skew))} {direction} that of the other hosts"
            fix = "sudo timedatectl set-ntp true"
            findings.add("warning", "clock-skew", host, message, fix, f"date: {skew:+.1f} s")


def path_arguments(plan: Plan) -> dict[str, str]:
    """The absolute paths among the script's arguments, each with its option or ""."""
    arguments = [
        node.command[find_script_arguments(node.command[1:]) + 1 :] for node in plan.nodes if not node.host.witness
    ]
    options = {}
    for before, word in pairwise(("", *arguments[0])):
        if not all(word in words for words in arguments):
            continue  # it differs between hosts, because it contains {host}
        option, equals, value = word.partition("=")
        if word.startswith("-") and equals and value.startswith("/"):
            options[value] = option
        elif word.startswith("/"):
            options[word] = before if before.startswith("-") else ""
    return options


# parts of the names of options for files that the script reads
INPUTS = ("data", "train", "val", "test", "input", "resume", "ckpt", "checkpoint", "weights", "config", "model", "root")


def _paths(
    plan: Plan, nodes: list[Node], facts: Mapping[str, Facts], sent: Mapping[str, str], findings: Findings
) -> None:
    """Check paths in arguments.

    A path may be a folder that the script creates. So a missing path is a finding only if it exists on another host,
    or if its option names an input.
    """
    for path, option in path_arguments(plan).items():
        absent = {
            node.host.name: facts[node.host.name].paths.get(path)
            for node in nodes
            if facts[node.host.name].paths.get(path)
        }
        if not absent:
            continue
        what = f"{option} {path}".strip()
        for host, why in absent.items():
            code = "dataset-missing" if len(absent) == len(nodes) else "file-missing-on-host"
            if why == "Permission denied":
                code = "file-permission-denied"
            if len(absent) < len(nodes) or any(word in option.lower() for word in INPUTS):
                look = f"ssh {next(iter(absent))} ls -ld {shlex.quote(posixpath.dirname(path))}"
                fix = f"copy or mount it there, or correct {option or 'the path'}; to check the folder: {look}"
                if path in sent:
                    fix = f"it was sent with the code: use `{sent[path]}` in place of {path}"
                findings.add("warning", code, host, f"{what}: {why}", fix, f"ls -d {path}: {why}")
