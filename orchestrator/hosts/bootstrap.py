"""The command lines for hosts: the one that installs and starts the node program, and `setup`. Sends nothing."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from ..ssh.dialer import quote
from .node_program import NodeProgram

# Runs before the node program is on the host, with any Python, so it also has to be valid Python 2. It reports whether
# the host has the node program (by its hash), reads it from stdin if not, and replaces itself with it. The program is
# unpacked because Python caches no byte code for a zip, and compiling took longer than the rest of a session.
STUB = """
import os, sys
def say(text):
    os.write(1, ("\\n%s %s\\n" % (NONCE, text)).encode())
if sys.version_info < (3, 8):
    say("old " + sys.version.split()[0])
    sys.exit(0)
uid = os.geteuid()
problems = []
candidates = [os.environ.get("DDP_ORCH_STATE_DIR"), os.path.expanduser("~/.local/state/ddp-orch")]
for base in candidates + ["/var/tmp/ddp-orch-%d" % uid, "/tmp/ddp-orch-%d" % uid]:
    if not base or not base.startswith("/"):
        continue
    try:
        os.makedirs(os.path.dirname(base), 0o700, exist_ok=True)
        if not os.path.lexists(base):
            try:
                os.mkdir(base, 0o700)
            except FileExistsError:
                pass  # another host with the same home was faster
        status = os.lstat(base)
        if status.st_uid == uid and status.st_mode & 0o170077 == 0o040000 and os.access(base, os.W_OK):
            break
        problems.append(base + " is not private to you")
    except OSError as error:
        problems.append(str(error))
else:
    say("error no private state folder: " + "; ".join(problems) + "; make one of them private (chown, chmod 700)")
    sys.exit(0)
path = os.path.join(base, "node-" + SHA[:16])
def whole():
    # a power loss, a full disk or a job that deletes old files may have damaged it
    size = 0
    try:
        for folder, _, names in os.walk(os.path.join(path, "node")):
            for name in names:
                if name.endswith(".py"):
                    with open(os.path.join(folder, name), "rb") as source:
                        text = source.read()
                    if b"\\0" in text:
                        return False
                    size += len(text)
        return size == SOURCES and os.path.isfile(os.path.join(path, "__main__.py"))
    except OSError:
        return False
if not whole():
    import hashlib
    say("need")
    data = b""
    while len(data) < SIZE:
        part = os.read(0, SIZE - len(data))
        if not part:
            sys.exit(0)
        data += part
    if hashlib.sha256(data).hexdigest() != SHA:
        say("error the node program was damaged during the transfer")
        sys.exit(0)
    import errno, io, shutil, zipfile
    def sync(path):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    aside = "%s.%s.new" % (path, NONCE)  # no pid: hosts with the same home may use the same pid
    damaged = "%s.%s.old" % (path, NONCE)
    failed = None
    mask = os.umask(0o077)
    try:
        zipfile.ZipFile(io.BytesIO(data)).extractall(aside)
        for folder, _, names in os.walk(aside):  # to the disk, before it gets the name of a complete one
            for name in names + ["."]:
                sync(os.path.join(folder, name))
        if not whole():  # another session may have been faster
            if os.path.lexists(path):
                os.rename(path, damaged)
            os.rename(aside, path)
            sync(base)
    except OSError as error:
        failed = error
    os.umask(mask)
    shutil.rmtree(aside, True)
    shutil.rmtree(damaged, True)
    if not whole():
        kind = "full" if failed and failed.errno in (errno.ENOSPC, errno.EDQUOT) else "error"
        what = ("written to " + base, failed.strerror) if failed else ("read from " + path, "it is damaged")
        say("%s the node program cannot be %s: %s; free some space there" % ((kind,) + what))
        sys.exit(0)
say("have")
# the new process has a readable command line; this encoded text would look like malware to an administrator
os.execv(sys.executable, [sys.executable, "-I", "-S", path, "serve", path])
"""


def bootstrap_command(python: str, program: NodeProgram, nonce: str, state_dir: str | None = None) -> str:
    """The command line of a session. It means the same in sh, bash, zsh, fish and csh.

    `state_dir`: as in the inventory.
    """
    head = f"NONCE, SHA, SIZE, SOURCES = {nonce!r}, {program.sha256!r}, {len(program.data)}, {program.sources}\n"
    encoded = base64.b64encode((head + STUB).encode()).decode()
    code = f'import base64;exec(base64.b64decode("{encoded}"))'
    where = ["env", f"DDP_ORCH_STATE_DIR={state_dir}"] if state_dir else []
    return f"exec {quote([*where, *interpreter_of(python), '-I', '-S', '-c'])} '{code}'"


def login_bash(lines: Sequence[str]) -> tuple[str, ...]:
    """The argv that runs shell lines, such as those of `setup`, in one login bash until one fails.

    The newline before the brace allows a line to end in a comment.
    """
    return ("bash", "-lc", " && ".join(f"{{ {line}\n}}" for line in lines))


def interpreter_of(python: str) -> tuple[str, ...]:
    # a name in the inventory may need `setup`, which does not run here; so take the python3 on the PATH
    return (python,) if python.startswith("/") else ("/usr/bin/env", "python3")
