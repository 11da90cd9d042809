"""The command lines of container engines. Pure.

A container shares the network, the processes and the memory of its host, has the same folders under the same paths, and
runs as the user. So what is known of bare ranks holds for its ranks: their pids, FIFOs, ports and files.

An engine is a row of ENGINES. Those with `records` know their containers by label, and may have to remove them. The
others know none: a container is its processes, and ends with them.
"""

from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Sequence

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
    variables: Sequence[str]  # names, whose values are in the environment of the command line; or NAME=VALUE
    gpus: Sequence[int]


class Engine(NamedTuple):
    """What differs between engines."""

    name: str  # of the program, too
    start: Callable[[Dict[str, Any], Here, Inside], List[str]]  # the words before those of the inventory
    version: Sequence[str]  # words that fail where the engine cannot be used
    gpus: str  # how GPUs get into a container: a key of container_probe.GPU_CHECKS
    failed: FrozenSet[int]  # exit statuses of a container that could not be started
    records: bool = False
    store: str = ""  # the field of `info` with the folder of its images
    force: Sequence[str] = ()  # words that make `rm --force` kill at once
    is_daemon: bool = False  # a daemon starts the containers, so that they are not below the guard
    all_gpus: bool = False  # a container has all GPUs of the host, so that CUDA_VISIBLE_DEVICES must choose
    variable_prefix: str = ""  # of the names of variables that the program passes on without their prefix
    environment: Sequence[str] = ()  # NAME=VALUE, for the program
    runtime_variable: str = ""  # names a folder of the user; its default needs a login session
    helpers: Sequence[str] = ()  # names of its processes that end by themselves after the container
    keepers: Sequence[str] = ()  # names of its processes that stay when all containers have ended
    shim: str = ""  # the beginning of the command line of a stopped process, which ends the container if continued
    needs_ids: bool = False  # subordinate user ids, where the user is not root
    needs_linger: bool = False  # its files are in /run/user


def _docker_like(container: Dict[str, Any], here: Here, inside: Inside) -> List[str]:
    engine = container["engine"]
    argv = ["run", "--rm", "--pull=never", "--log-driver=none", "--network=host", "--pid=host"]
    argv += ["--security-opt=label=disable", *(["--label=%s=%s" % (LABEL, inside.folder)] if inside.folder else [])]
    argv += ["--user=%d:%d" % (here.uid, here.gid)]
    rootless = ENGINES[engine].needs_ids and here.uid != 0
    if rootless:
        argv.append("--userns=keep-id")
    argv += ["--ipc=host"] if here.message_queues else ["--volume=/dev/shm:/dev/shm"]
    if here.infiniband:
        argv.append("--device=/dev/infiniband")
    if here.infiniband and (here.may_lock_memory or not rootless):
        argv.append("--ulimit=memlock=-1:-1")
    if inside.gpus and container.get("cdi", True):
        argv += ["--device=nvidia.com/gpu=%d" % number for number in inside.gpus]
    elif inside.gpus:
        argv.append('--gpus="device=%s"' % ",".join(map(str, inside.gpus)))
    for mount in [*inside.mounts, *container["mounts"]]:
        argv.append("--volume=" + ":".join(_mount(mount)))
    argv += ["--workdir=" + inside.cwd, *("--env=" + name for name in inside.variables)]
    return [*argv, "--entrypoint="]


def _apptainer(container: Dict[str, Any], here: Here, inside: Inside) -> List[str]:
    """/dev, /proc, /sys and /tmp are those of the host; the user's id, limits, network and IPC stay as they are."""
    argv = ["--silent", "exec", "--cleanenv", "--no-home", *(["--nv"] if inside.gpus else [])]
    argv += ["--bind=" + ":".join(_mount(mount)) for mount in [*inside.mounts, *container["mounts"]]]
    return [*argv, "--pwd", inside.cwd]


def _enroot(container: Dict[str, Any], here: Here, inside: Inside) -> List[str]:
    """/dev, /proc and /sys are those of the host; the user's id, limits, network and IPC stay as they are."""
    argv = ["start"]
    for mount in [*inside.mounts, *container["mounts"]]:
        source, target, *mode = _mount(mount)
        words = (source, target, "none", "x-create=auto,rbind," + (mode[0] if mode else "rw"))
        argv.append("--mount=" + ":".join(words).replace(" ", "\\040"))  # as in fstab
    # they override those of the image, which would end the container where there is no driver
    gpus = ["NVIDIA_VISIBLE_DEVICES=void"]
    if inside.gpus:
        gpus = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"]
    return argv + ["--env=" + variable for variable in [*gpus, *inside.variables]]


def _mount(mount: str) -> List[str]:
    """Source and target, and "ro" if it is read-only, of PATH, PATH:ro, PATH:PATH or PATH:PATH:ro."""
    source, _, rest = mount.partition(":")
    return [source, source, *filter(None, [rest])] if rest in ("", "ro") else mount.split(":")


def _of_apptainer(name: str) -> Engine:
    variables = [name.upper() + "_NO_EVAL=1"]  # or a shell expands `$` in the values of variables
    return Engine(
        name,
        _apptainer,
        version=("version",),
        gpus="libraries",
        failed=frozenset([255]),
        all_gpus=True,
        variable_prefix=name.upper() + "ENV_",
        environment=variables,
    )


ENGINES: Dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            "podman",
            _docker_like,
            version=("info", "--format={{.Version.Version}}"),
            gpus="cdi",
            failed=frozenset([125]),
            records=True,
            store="Store.GraphRoot",
            force=("--time=0",),
            helpers=("conmon", "podman"),
            keepers=("podman", "podman pause", "catatonit"),
            needs_ids=True,
            needs_linger=True,
        ),
        Engine(
            "docker",
            _docker_like,
            version=("info", "--format={{.ServerVersion}}"),
            gpus="docker",
            failed=frozenset([125]),
            records=True,
            store="DockerRootDir",
            is_daemon=True,
        ),
        Engine(
            "enroot",
            _enroot,
            version=("version",),
            gpus="nvidia-container-cli",
            failed=frozenset([1]),
            all_gpus=True,
            environment=("ENROOT_LOGIN_SHELL=n",),  # a login shell replaces the PATH of the image
            runtime_variable="ENROOT_RUNTIME_PATH",
            shim="fuse-shim",
        ),
        _of_apptainer("apptainer"),
        _of_apptainer("singularity"),
    )
}


def run_argv(container: Dict[str, Any], here: Here, inside: Inside, command: List[str]) -> List[str]:
    """The command line that runs `command` in a container until it ends. `container`: of the spec."""
    start = ENGINES[container["engine"]].start(container, here, inside)
    return [container["engine"], *start, *container["options"], container["image"], *command]


def client_environment(engine: str, variables: Dict[str, str], runtime: str) -> Dict[str, str]:
    """The variables of the engine's program that give `variables` to a container. `runtime`: a folder of its own."""
    row = ENGINES[engine]
    own = dict(each.split("=", 1) for each in row.environment)
    if row.runtime_variable:
        own[row.runtime_variable] = runtime
    return {**own, **{row.variable_prefix + name: value for name, value in variables.items()}}


def list_argv(engine: str, folder: str) -> List[str]:
    """Prints the id of each container of a run, one per line. For engines with records."""
    return [engine, "ps", "--all", "--quiet", "--no-trunc", "--filter=label=%s=%s" % (LABEL, folder)]


def remove_argv(engine: str, ids: Sequence[str]) -> List[str]:
    """For engines with records."""
    return [engine, "rm", "--force", *ENGINES[engine].force, *ids]


def image_argv(engine: str, image: str) -> List[str]:
    """Prints the id of an image, and its digests in registries. For engines with records."""
    return [engine, "image", "inspect", "--format={{.Id}} {{range .RepoDigests}}{{.}} {{end}}", image]


def size_argv(engine: str, image: str) -> List[str]:
    """Prints the bytes of an image. For engines with records."""
    return [engine, "image", "inspect", "--format={{.Size}}", image]


def store_argv(engine: str) -> List[str]:
    """Prints the folder of the engine's images. For engines with records."""
    return [engine, "info", "--format={{.%s}}" % ENGINES[engine].store]


def version_argv(engine: str) -> List[str]:
    """Fails where the engine cannot be used."""
    return [engine, *ENGINES[engine].version]
