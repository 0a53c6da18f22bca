"""A client of ADK's REST API, by the standard library: it must not share code with what it judges."""

from __future__ import annotations

import base64
import hashlib
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from tests.adk.oracle.values import Json

_TIMEOUT = 90.0
_LONGEST_TEXT = 400


class Trouble(Exception):
    """The drive cannot go on: the server does not do what the next turn builds on."""


class Api:
    """One app of a server, as its REST API shows it."""

    def __init__(self, base: str, app: str) -> None:
        self._base, self.app = base, app

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Return the status and the text of an answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._base + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode(errors="replace")

    def get(self, path: str) -> Any:
        """Return what is at a path.

        Raises:
            Trouble: The status is not 200.
        """
        status, text = self.send("GET", path)
        if status != 200:
            raise Trouble(f"GET {path}: {status} {text[:_LONGEST_TEXT]}")
        return json.loads(text)

    def user_path(self, user: str) -> str:
        """Return the path of a user of the app."""
        return f"/apps/{self.app}/users/{user}"

    def artifacts(self, session: str) -> Json:
        """Return the artifacts of a session's path, by name and version."""
        found: Json = {}
        for name in sorted(self.get(f"{session}/artifacts")):
            versions = f"{session}/artifacts/{urllib.parse.quote(name, safe='')}/versions"
            found[name] = {str(number): _digest(self.get(f"{versions}/{number}")) for number in self.get(versions)}
        return found

    def run(self, body: Json, *, streams: bool, frames: bool) -> Json:
        """Take a turn; returns its status, events, and text or errors.

        Args:
            body: The request.
            streams: Whether partial events are asked for.
            frames: Whether the events come one by one, partial or not.
        """
        if not (streams or frames):
            status, text = self.send("POST", "/run", body)
            if status != 200:
                return {"status": status, "events": [], "text": text}
            return {"status": status, "events": json.loads(text)}
        status, text = self.send("POST", "/run_sse", {**body, "streaming": streams})
        if status != 200:
            return {"status": status, "events": [], "text": text}
        came: list[Json] = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data:")]
        errors = [frame["error"] for frame in came if "error" in frame and "author" not in frame]
        taken: Json = {"status": status, "events": [frame for frame in came if "author" in frame]}
        return {**taken, "error": errors} if errors else taken


def _digest(part: Json) -> Json:
    """Return an artifact's part: short texts as they are, all else as a hash."""
    if "inlineData" in part:
        content = base64.urlsafe_b64decode(part["inlineData"]["data"].replace("+", "-").replace("/", "_"))
        kind = part["inlineData"].get("mimeType")
        return {"mimeType": kind, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    text = part.get("text")
    if text is not None and len(text) > _LONGEST_TEXT:
        return {"chars": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return part
