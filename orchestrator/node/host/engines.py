"""The command lines of container engines. Pure.

A container shares the network, the processes and the memory of its host, has the same folders under the same paths, and
runs as the user. So what is known of bare ranks holds for its ranks: their pids, FIFOs, ports and files.
"""

from typing import Any, Dict, List, NamedTuple, Sequence

PODMAN, DOCKER = "podman", "docker"
ENGINES = (PODMAN, DOCKER)  # in the order in which `auto` tries them
LABEL = "ddp-orch.run"  # the folder of the run, whose last part is the run id


class Here(NamedTuple):
    """What a command line depends on, of this host and user."""

    uid: int
    gid: int
    message_queues: bool  # /dev/mqueue is mounted: without it, no engine shares the host's IPC namespace
    may_lock_memory: bool  # this user's limit of locked memory can be unlimited
    infiniband: bool  # /dev/infiniband exists


class Inside(NamedTuple):
    """What a container needs, apart from what the inventory has."""

    folder: str  # the run's; "": of no run
    cwd: str
    mounts: Sequence[str]  # as in the inventory
    variables: Sequence[str]  # names; the values are in the environment of the command line
    gpus: Sequence[int]


def run_argv(container: Dict[str, Any], here: Here, inside: Inside, command: List[str]) -> List[str]:
    """The command line that runs `command` in a container until it ends. `container`: of the spec."""
    engine = container["engine"]
    argv = [engine, "run", "--rm", "--pull=never", "--log-driver=none", "--network=host", "--pid=host"]
    argv += ["--security-opt=label=disable", *(["--label=%s=%s" % (LABEL, inside.folder)] if inside.folder else [])]
    argv += ["--user=%d:%d" % (here.uid, here.gid)]
    rootless = engine == PODMAN and here.uid != 0
    if rootless:
        argv.append("--userns=keep-id")
    argv += ["--ipc=host"] if here.message_queues else ["--volume=/dev/shm:/dev/shm"]
    if here.infiniband:
        argv.append("--device=/dev/infiniband")
    if here.infiniband and (here.may_lock_memory or not rootless):
        argv.append("--ulimit=memlock=-1:-1")
    if inside.gpus and engine == DOCKER:
        argv.append('--gpus="device=%s"' % ",".join(map(str, inside.gpus)))
    elif inside.gpus:
        argv += ["--device=nvidia.com/gpu=%d" % number for number in inside.gpus]
    for mount in [*inside.mounts, *container["mounts"]]:
        argv.append("--volume=" + _volume(mount))
    argv += ["--workdir=" + inside.cwd, *("--env=" + name for name in inside.variables)]
    return argv + ["--entrypoint=", *container["options"], container["image"], *command]


def _volume(mount: str) -> str:
    """PATH, PATH:ro, PATH:PATH or PATH:PATH:ro, as the engines want it."""
    source, _, rest = mount.partition(":")
    if rest in ("", "ro"):
        return "%s:%s" % (source, source) + (":ro" if rest else "")
    return mount


def list_argv(engine: str, folder: str) -> List[str]:
    """Prints the id of each container of a run, one per line."""
    return [engine, "ps", "--all", "--quiet", "--no-trunc", "--filter=label=%s=%s" % (LABEL, folder)]


def remove_argv(engine: str, ids: Sequence[str]) -> List[str]:
    return [engine, "rm", "--force", *(["--time=0"] if engine == PODMAN else []), *ids]


def image_argv(engine: str, image: str) -> List[str]:
    """Prints the id of an image, and its digests in registries."""
    return [engine, "image", "inspect", "--format={{.Id}} {{range .RepoDigests}}{{.}} {{end}}", image]


def version_argv(engine: str) -> List[str]:
    """Fails where the engine cannot be used."""
    return [engine, "info", "--format=" + ("{{.Version.Version}}" if engine == PODMAN else "{{.ServerVersion}}")]
