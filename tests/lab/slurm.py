"""A real Slurm on the hosts of a lab: slurmctld on the first one, slurmd and munged on each. Debian's packages.

sshd and Slurm know nothing of each other: a login over SSH does not belong to a job, and survives it.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from .host import PATH, USERS, Host
from .lab import Lab
from .waiting import wait_until

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "munged")
CONF = "/run/slurm/slurm.conf"
CONFIG = """\
ClusterName=lab
SlurmctldHost={head}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge/socket,cred_expire=1
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SchedulerParameters=sched_interval=1,batch_sched_delay=0,default_queue_depth=100
ReturnToService=2
KillWait={kill_wait}
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why there can be no Slurm on this machine, or None."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return f"these programs are not installed: {', '.join(absent)} (slurm-wlm, munge)" if absent else None


class Slurm:
    """Slurm on all hosts of a lab. ann can submit jobs, and log in from each host to the others.

    kill_wait: seconds between SIGTERM and SIGKILL at the end of a job.
    """

    def __init__(self, lab: Lab, *, kill_wait: int = 30) -> None:
        self.lab = lab
        self.head = lab.hosts[0]
        names = [f"NodeName={host.name} NodeAddr={host.address} CPUs=2 State=UNKNOWN" for host in lab.hosts]
        config = CONFIG.format(head=self.head.name, kill_wait=kill_wait, nodes="\n".join(names))
        key = os.urandom(1024).hex()
        for host in lab.hosts:
            _install(host, config, key)
            _allow_logins(lab, host)
        self.head.sh(f"slurmctld -f {CONF}", "root", check=True)
        for host in lab.hosts:
            host.sh(f"slurmd -f {CONF} -N {host.name}", "root", check=True)
        wait_until(self._is_idle, 30, "all nodes of Slurm are idle")

    def _is_idle(self) -> bool:
        states = self.run("sinfo", "-h", "-N", "-o", "%t", check=False).split()
        return states == ["idle"] * len(self.lab.hosts)

    def run(self, *argv: str, check: bool = True) -> str:
        """What a command of Slurm prints, called by ann on the first host."""
        return self.head.run(argv, env={"SLURM_CONF": CONF}, check=check).stdout

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch script of ann, with her Python first on the PATH; the id of the job."""
        self.write("job.sh", script)
        command = ["sbatch", "--parsable", "--chdir=work", "--output=job-%j.out", *options, "work/job.sh"]
        environment = {"SLURM_CONF": CONF, "PATH": f"{Path(self.head.python).parent}:{PATH}"}
        return self.head.run(command, env=environment, check=True).stdout.strip()

    def output(self, job: str) -> Path:
        """Where a job writes: on the host where its script runs."""
        return self.head.home / f"work/job-{job}.out"

    def write(self, name: str, text: str) -> None:
        """Write a file into the folder where jobs run, on the first host."""
        path = self.head.home / "work" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        for each in (path.parent, path):
            os.chown(each, USERS["ann"], USERS["ann"])

    def state(self, job: str) -> str:
        """Such as RUNNING."""
        return self._fields(job)["JobState"]

    def start_again(self, job: str) -> None:
        """Wait until a job that was requeued runs again: Slurm holds it back for two minutes.

        To start it sooner is no alternative. slurmctld may take the end of its first script for that of the second one.
        """

        def runs() -> bool:
            fields = self._fields(job)
            return fields["JobState"] == "RUNNING" and fields["Restarts"] != "0"

        wait_until(runs, 240, f"job {job} runs again", pause=1)

    def _fields(self, job: str) -> dict[str, str]:
        return dict(word.partition("=")[::2] for word in self.run("scontrol", "show", "job", job).split())


def _install(host: Host, config: str, key: str) -> None:
    host.sh("mkdir -m 755 /run/munge /run/slurm && umask 077 && cat > /run/munge/key", "root", input=key, check=True)
    host.sh(f"cat > {CONF}", "root", input=config, check=True)
    munged = ["munged", "--key-file=/run/munge/key", "--socket=/run/munge/socket", "--pid-file=/run/munge/pid"]
    munged += ["--log-file=/var/log/munged.log", "--seed-file=/run/munge/seed"]
    host.sh(shlex.join(munged), "root", check=True)


def _allow_logins(lab: Lab, host: Host) -> None:
    folder = host.home / ".ssh"
    for name in ("id_ed25519", "id_ed25519.pub", "known_hosts"):
        shutil.copy(lab.controller_home / ".ssh" / name, folder / name)
        os.chown(folder / name, USERS["ann"], USERS["ann"])
