"""Stands in for W&B's server on this machine: takes a run, and keeps every byte that it is sent."""

import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RUN = {
    "id": "r",
    "name": "the-run",
    "displayName": "the-run",
    "description": "",
    "config": "{}",
    "historyLineCount": 0,
}
PROJECT = {"id": "p", "name": "rungwise", "entity": {"id": "e", "name": "someone"}}
VIEWER = {"id": "u", "entity": "someone", "username": "someone", "flags": "{}", "teams": {"edges": []}}
ARTIFACT = {"id": "a", "state": "COMMITTED", "artifactSequence": {"id": "s", "latestArtifact": None}}


@dataclass
class Server:
    """Where it answers, and what it was sent: a line and a body for each request, and its headers but the key's."""

    url: str = ""
    requests: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def sent(self) -> bytes:
        """All of it."""
        return b"\n".join(line.encode() + b"\n" + body for line, body in self.requests)

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """What GraphQL's `data` is for a query."""
        if "upsertBucket" in query:
            bucket = {**RUN, "name": variables.get("name") or RUN["name"], "sweepName": None, "project": PROJECT}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "createRunFiles" in query:
            names = variables.get("files") or []
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in names]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        if "createArtifactManifest" in query:
            file = {"uploadUrl": f"{self.url}/upload/manifest", "uploadHeaders": [], "storagePath": "m", "id": "f"}
            return {"createArtifactManifest": {"artifactManifest": {"id": "m", "file": file}}}
        if "createArtifactFiles" in query:
            return {"createArtifactFiles": {"files": {"edges": []}}}
        if "createArtifact" in query:
            return {"createArtifact": {"artifact": ARTIFACT}}
        if "commitArtifact" in query:
            return {"commitArtifact": {"artifact": {"id": "a", "digest": "d"}}}
        return {"viewer": VIEWER, "serverInfo": {"features": []}, "model": None, "project": None}


@contextmanager
def serving(status: int = 200, seconds: float = 0.0, at: str = "/") -> Iterator[Server]:
    """The server, on a free port, while the context lasts.

    Args:
        status: of its answers to what is sent below `at`.
        seconds: that these take.
        at: the start of a path: `/graphql` begins a run, `/files` takes its rows.
    """
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            others = "".join(f"{name}: {value}\n" for name, value in self.headers.items() if name != "Authorization")
            server.requests.append((f"{self.command} {self.path}\n{others}", body))
            content: dict[str, Any] = {}
            if self.path == "/graphql":
                asked = json.loads(body)
                content = {"data": server.answer(asked["query"], asked.get("variables") or {})}
            answer = json.dumps(content).encode()
            troubled = self.path.startswith(at)
            time.sleep(seconds if troubled else 0)
            self.send_response(status if troubled else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_PUT = do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        server.url = f"http://127.0.0.1:{http.server_port}"
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield server
        http.shutdown()
