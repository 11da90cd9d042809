"""The node program's verbs. A controller starts `serve` over SSH, which starts `guard`, which starts the others."""

import sys
from typing import List


def main(arguments: List[str]) -> int:
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    # each verb imports what it needs: rank-exec runs once a rank and must be quick
    if verb == "serve":
        from .serve.relay import serve

        return serve(rest[0])
    if verb == "grep":
        from .serve.grep import main as grep

        return grep(int(rest[0]))
    if verb == "autostart":
        from .serve.at_boot import main as rejoin_at_boot

        return rejoin_at_boot(rest[0])
    if verb == "dumps":
        from .serve.flight import main as dumps

        return dumps(rest)
    if verb == "shell-exec":
        from .serve.shell_exec import main as shell_exec

        return shell_exec(rest)
    if verb == "health":
        from .host.health import main as health

        return health()
    if verb == "remove-containers":
        from .host.containers import main as remove_containers

        return remove_containers(rest)
    return _start_part_of_run(verb, rest)


def _start_part_of_run(verb: str, rest: List[str]) -> int:
    if verb == "guard":
        from .daemon import main_guard as guard

        return guard()
    if verb == "keeper":
        from .daemon import main_keeper as keeper

        keeper()
    if verb == "notify":
        from .recorder.notify import main as notify

        return notify()
    if verb == "resume-serve":
        from .resume.server import main as resume_serve

        return resume_serve()
    if verb == "resume-lead":
        from .resume.leader import main as resume_lead

        return resume_lead()
    if verb == "rank-exec":
        from .ranks.job import rank_exec

        rank_exec(rest)
    if verb == "job-exec":
        from .ranks.job import job_exec

        job_exec(rest)
    if verb == "mpirun":
        from .mpi.agent import main as mpirun

        return mpirun(rest[0])
    if verb == "mpi-rank":
        from .mpi.mpi_rank import main as mpi_rank

        return mpi_rank(rest)
    if verb == "remote-command":
        from .mpi.remote_command import main as remote_command

        return remote_command(rest)
    if verb == "contained":
        from .ranks.contained import main as contained

        return contained(rest)
    if verb == "stacks":
        from .ranks.stacks import main as stacks

        return stacks(rest)
    sys.stderr.write("ddp-orch's node program: it is started by ddp-orch, not by hand\n")
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
