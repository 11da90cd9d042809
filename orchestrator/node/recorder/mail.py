"""Send a notification by mail: with the sendmail program of the host, or to an SMTP server."""

import os
import shutil
import socket
import subprocess
from typing import Callable, List, NamedTuple, Optional
from urllib.parse import unquote, urlsplit

SERVER_WINDOW = 20.0  # s for each answer of an SMTP server
PROGRAM_WINDOW = 60.0  # s for sendmail
SUBJECT_MOST = 120  # characters
FOLDERS = "/usr/sbin:/usr/lib"  # of sendmail, which the PATH of users often lacks
PORTS = {"smtp": 25, "smtps": 465}
SUBMISSION = 587  # the port of smtp with a password (RFC 6409)


class Target(NamedTuple):
    """Where mail goes: `mailto:TO`, or `smtp[s]://[USER:PASSWORD@]HOST[:PORT]/TO`; TO: addresses with commas."""

    to: List[str]
    scheme: str = "mailto"
    host: str = ""
    port: int = 0
    user: str = ""
    password: str = ""


def parse(address: str) -> Target:
    url = urlsplit(address)
    to = unquote(url.path.lstrip("/")).split(",")
    if url.scheme == "mailto":
        return Target(to)
    user, password = unquote(url.username or ""), unquote(url.password or "")
    port = url.port or (SUBMISSION if user and url.scheme == "smtp" else PORTS[url.scheme])
    return Target(to, url.scheme, url.hostname or "", port, user, password)


def find_sendmail() -> Optional[str]:
    return shutil.which("sendmail", path="%s:%s" % (os.environ.get("PATH", os.defpath), FOLDERS))


def send(address: str, text: str, before: Callable[[], None] = lambda: None) -> Optional[str]:
    """Returns the problem or None. The address may contain a password, and is in no text.

    `before`: is called before anything is sent. What it raises ends that.
    """
    target = parse(address)
    data = _compose(target, text)
    return _pipe(data, before) if target.scheme == "mailto" else _submit(target, data, before)


def _compose(target: Target, text: str) -> bytes:
    from email.message import EmailMessage
    from email.utils import formatdate, make_msgid

    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    mail = EmailMessage()
    mail["Subject"] = " ".join(text.split())[:SUBJECT_MOST]
    mail["To"] = ", ".join(target.to)
    if target.scheme != "mailto":  # sendmail knows who we are
        mail["From"] = "ddp-orch <%s>" % _sender(target)
        mail["Message-ID"] = make_msgid(domain="ddp-orch.invalid")
    mail["Date"] = formatdate()
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no answer by a machine
    mail.set_content("%s\n\nSent by %s.\n" % (text, socket.gethostname()))
    return mail.as_bytes()


def _sender(target: Target) -> str:
    return target.user if "@" in target.user else target.to[0]


def _pipe(data: bytes, before: Callable[[], None]) -> Optional[str]:
    program = find_sendmail()
    if program is None:
        return "sendmail: not found"
    before()
    try:
        done = subprocess.run([program, "-t", "-i"], input=data, stdout=2, stderr=2, timeout=PROGRAM_WINDOW)
    except subprocess.TimeoutExpired:
        return "sendmail: stopped after %d s" % PROGRAM_WINDOW
    return "sendmail: exit status %d" % done.returncode if done.returncode else None


def _submit(target: Target, data: bytes, before: Callable[[], None]) -> Optional[str]:
    import smtplib  # with ssl and email: not in every recorder's memory
    import ssl

    try:
        if target.scheme == "smtps":
            server = smtplib.SMTP_SSL(
                target.host, target.port, timeout=SERVER_WINDOW, context=ssl.create_default_context()
            )  # type: smtplib.SMTP
        else:
            server = smtplib.SMTP(target.host, target.port, timeout=SERVER_WINDOW)
        with server:
            if target.user:
                if target.scheme == "smtp":  # a password never travels in the clear
                    server.starttls(context=ssl.create_default_context())
                server.login(target.user, target.password)
            before()
            refused = server.sendmail(_sender(target), target.to, data)
        return "the server refused %d of the recipients" % len(refused) if refused else None
    except smtplib.SMTPResponseException as error:
        return "the server answered %d" % error.smtp_code
    except smtplib.SMTPRecipientsRefused:
        return "the server refused the recipients"
    except (OSError, ValueError) as error:  # SMTPException is an OSError
        return getattr(error, "strerror", None) or type(error).__name__
