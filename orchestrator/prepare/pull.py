"""Lets a container engine pull an image. Runs alone on the host (standard library of Python 3.7 or newer).

The request: engine (path of its socket), image, login (the header X-Registry-Auth, empty if there is none). It comes on standard
input, so that no list of processes shows the login. An error is one line on standard error.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
import urllib.parse


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def pull(engine: str, image: str, login: str) -> str:
    """The error of the engine; empty if it has the image. Raises OSError, HTTPException."""
    connection = _Unix(engine)
    tag = "" if "@" in image or ":" in image.rsplit("/", 1)[-1] else ":latest"  # without a tag it would pull all
    path = "/images/create?" + urllib.parse.urlencode({"fromImage": image + tag})
    connection.request("POST", path, headers={"X-Registry-Auth": login} if login else {})
    response = connection.getresponse()
    lines = [json.loads(line) for line in response.read().splitlines() if line.startswith(b"{")]
    if response.status != 200:
        return str(lines[0].get("message") if lines else response.status)
    return next((str(line["error"]) for line in lines if line.get("error")), "")


def main(request: str) -> None:
    """Exit with the error, if there is one. ``request``: JSON; the sender appends this call to the script."""
    try:
        error = pull(**json.loads(request))
    except (OSError, http.client.HTTPException, ValueError) as problem:
        error = str(problem)
    if error:
        sys.exit(" ".join(error.split()))
