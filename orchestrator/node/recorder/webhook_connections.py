"""Connections of urllib that call a function when they are established, before anything is sent.

Apart from notify.py: urllib, http and ssl are not in every recorder's memory.
"""

import urllib.request
from http.client import HTTPConnection
from typing import Any, Callable

Before = Callable[[], None]


def opener(before: Before) -> urllib.request.OpenerDirector:
    """Like that of `urlopen`. `before`: what it raises ends the request."""

    class Http(urllib.request.HTTPHandler):
        def do_open(self, http_class: Any, req: Any, **arguments: Any) -> Any:
            return super().do_open(_watched(http_class, before), req, **arguments)

    if not hasattr(urllib.request, "HTTPSHandler"):  # a python without ssl
        return urllib.request.build_opener(Http)

    class Https(urllib.request.HTTPSHandler):
        def do_open(self, http_class: Any, req: Any, **arguments: Any) -> Any:
            return super().do_open(_watched(http_class, before), req, **arguments)

    return urllib.request.build_opener(Http, Https)


def _watched(http_class: Callable[..., HTTPConnection], before: Before) -> Callable[..., HTTPConnection]:
    def make(*arguments: Any, **options: Any) -> HTTPConnection:
        connection = http_class(*arguments, **options)
        connect = connection.connect

        def connect_and_call() -> None:
            connect()
            before()

        connection.connect = connect_and_call  # type: ignore[method-assign]
        return connection

    return make
