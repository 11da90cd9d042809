"""A scheduler of TorchX: applications run on the hosts of an inventory of ddp-orch. Starts runs, and asks for them.

The interface: https://pytorch.org/torchx/latest/schedulers.html
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.schedulers.ids import make_unique
from torchx.specs import AppDef, AppDryRunInfo, AppState, ReplicaStatus, Role, RoleStatus, macros, runopts

import orchestrator
from orchestrator.errors import OrchError, UsageError

STATES = {
    "starting": AppState.PENDING,
    "running": AppState.RUNNING,
    "suspect": AppState.RUNNING,
    "restarting": AppState.RUNNING,
    "waiting": AppState.RUNNING,
    "stopping": AppState.RUNNING,
    "succeeded": AppState.SUCCEEDED,
    "failed": AppState.FAILED,
    "lost": AppState.FAILED,
    "stopped": AppState.CANCELLED,
    "killed": AppState.CANCELLED,
}
"""By state of a run, or of one of its nodes."""

LONGEST_NAME = 63  # characters of the name of a run


@dataclass(frozen=True)
class Request:
    """The arguments of `orchestrator.run`."""

    name: str
    words: tuple[str, ...]
    env: Mapping[str, str]
    settings: Mapping[str, Any]
    inventory: str | None
    hosts: str | None
    wait: bool

    def __str__(self) -> str:
        """The same as a command."""
        values = {"-i": self.inventory, "--hosts": self.hosts}
        options = [word for option, value in values.items() if value for word in (option, value)]
        options += [word for name, value in self.env.items() for word in ("-e", f"{name}={value}")]
        options += [word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")]
        options += ["--wait"] if self.wait else []
        return shlex.join(["ddp-orch", "up", "-d", "--name", self.name, *options, "--", *self.words])


class DdpOrchScheduler(Scheduler[Mapping[str, Any]]):
    """The id of an application is the name of a run."""

    def __init__(self, session_name: str) -> None:
        super().__init__("ddp_orch", session_name)

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add(
            "inventory",
            type_=str,
            default=None,
            help="inventory file; default: $DDP_ORCH_INVENTORY or ./inventory.yaml",
        )
        options.add("hosts", type_=str, default=None, help="use only these hosts, such as gpu[01-04]")
        options.add("wait", type_=bool, default=False, help="wait while another run uses the GPUs")
        return options

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[Request]:
        if len(app.roles) != 1:
            raise ValueError(f"{app.name} has {len(app.roles)} roles; ddp_orch runs applications with one, as dist.ddp")
        role = app.roles[0]
        if role.mounts:
            raise ValueError("mounts are not supported; set `container: {mounts: [...]}` in the inventory")
        name = make_unique(re.sub(r"[^A-Za-z0-9._-]+", "-", app.name).strip("._-")[: LONGEST_NAME - 20] or "app")
        values = macros.Values(img_root="", app_id=name, replica_id="0", rank0_env="TORCHX_RANK0_HOST")
        role = values.apply(role)
        settings = {"run.max_restarts": role.max_retries} if role.max_retries else {}
        request = Request(name, _words(role), role.env, settings, cfg["inventory"], cfg["hosts"], bool(cfg["wait"]))
        return AppDryRunInfo(request, str)

    def schedule(self, dryrun_info: AppDryRunInfo[Request]) -> str:
        request = dryrun_info.request
        program, *args = request.words
        run = orchestrator.run(
            program,
            args,
            name=request.name,
            inventory=request.inventory,
            hosts=request.hosts,
            env=request.env,
            settings=request.settings,
            wait_for_hosts=request.wait,
        )
        return run.name

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        try:
            run = orchestrator.find_run(app_id)
        except UsageError:
            return None
        status = run.status()
        replicas = [
            ReplicaStatus(id=node.node_rank or 0, state=_state(node.state), role="ddp", hostname=node.host)
            for node in status.nodes
        ]
        state = _state(status.state)
        message = ""
        if state is AppState.FAILED:
            message = "\n".join(f"{cause.message}\n{chr(10).join(cause.evidence)}" for cause in run.diagnose()[:1])
        return DescribeAppResponse(
            app_id=app_id,
            state=state,
            num_restarts=status.attempt - 1,
            msg=message,
            roles_statuses=[RoleStatus(role="ddp", replicas=replicas)],
            roles=[Role(name="ddp", image="", num_replicas=len(replicas))],
        )

    def list(self) -> list[ListAppResponse]:
        runs = orchestrator.list_runs(finished=True)
        return [ListAppResponse(app_id=run.name, state=_state(status.state)) for run, status in runs.items()]

    def _cancel_existing(self, app_id: str) -> None:
        orchestrator.find_run(app_id).kill()

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """The lines of one host: `k` is its place in the run."""
        run = orchestrator.find_run(app_id)
        hosts = [node.host for node in run.status().nodes if node.node_rank == k]
        if not hosts:
            raise OrchError(f"run {app_id} has no node {k}")
        lines = run.logs(
            follow=should_tail,
            host=hosts[0],
            grep=regex,
            stream=streams.value if streams in (Stream.STDOUT, Stream.STDERR) else None,
            since=_in_utc(since),
            until=_in_utc(until),
        )
        return (f"{line.text}\n" for line in lines)


def create_scheduler(session_name: str, **_: object) -> DdpOrchScheduler:
    """What TorchX calls for `-s ddp_orch`."""
    return DdpOrchScheduler(session_name)


def _words(role: Role) -> tuple[str, ...]:
    """The command line of torchrun in a role. dist.ddp wraps it in `bash -c`."""
    words = [role.entrypoint, *role.args]
    if role.entrypoint in ("bash", "sh") and role.args[:1] == ["-c"] and len(role.args) == 2:
        words = shlex.split(role.args[1])
    if not words or words[0] != "torchrun":
        raise ValueError(
            f"role {role.name} runs {words[0] or 'nothing'}; ddp_orch runs roles with torchrun, as dist.ddp"
        )
    return tuple(words)


def _state(state: str) -> AppState:
    return STATES.get(state, AppState.UNKNOWN)


def _in_utc(at: datetime | None) -> datetime | None:
    """TorchX's own times are local, without a time zone."""
    return None if at is None else at.astimezone(timezone.utc)
