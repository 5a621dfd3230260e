"""A bucket of Google Cloud Storage on this machine, for TensorFlow's own gs:// file system.

TensorFlow speaks the JSON API over TLS to www.googleapis.com and reads objects from
storage.googleapis.com. Both are played here, behind an HTTP proxy with a certificate of its own, as
https://cloud.google.com/storage/docs/json_api tells: objects are whole or not at all, there are no
folders, and a name that is unknown is 404.
"""

import contextlib
import json
import pathlib
import re
import ssl
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Bucket:
    """One bucket, of any name."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment  # what a process needs to find it
        self.objects: dict[str, bytes] = {}
        self.generations: dict[str, int] = {}
        self.lock = threading.Lock()
        self._num_writes = 0

    def put(self, name: str, value: bytes) -> None:
        self._num_writes += 1
        self.objects[name] = value
        self.generations[name] = self._num_writes


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket
    context: ssl.SSLContext

    def log_message(self, *_: Any) -> None:
        pass

    def do_CONNECT(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.connection = self.context.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)  # type: ignore[assignment]
        self.close_connection = False

    def _serve(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        body = self._body()
        with self.bucket.lock:
            status, answer, headers = self._answer(url.path, query, body)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

    def _answer(
        self, path: str, query: dict[str, str], body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        bucket = self.bucket
        if self.headers["Host"].startswith("storage."):
            return self._read(urllib.parse.unquote(path.split("/", 2)[2]))
        if path.startswith("/upload/"):
            return self._upload(query, body)
        if re.fullmatch(r"/storage/v1/b/[^/]+", path):
            return 200, b'{"location": "HERE"}', {}
        if re.fullmatch(r"/storage/v1/b/[^/]+/o", path):
            return 200, self._list(query), {}
        match = re.fullmatch(
            r"/storage/v1/b/[^/]+/o/([^/]+)(?:/rewriteTo/b/[^/]+/o/([^/]+))?", path
        )
        if match is None:
            return 501, path.encode(), {}
        name = urllib.parse.unquote(match[1])
        if name not in bucket.objects:
            return 404, b"no such object", {}
        if match[2]:
            bucket.put(urllib.parse.unquote(match[2]), bucket.objects[name])
            return 200, b'{"done": true}', {}
        if self.command == "DELETE":
            del bucket.objects[name]
            return 204, b"", {}
        value = {
            "size": str(len(bucket.objects[name])),
            "generation": str(bucket.generations[name]),
            "updated": "2025-01-01T00:00:00.000Z",
        }
        return 200, json.dumps(value).encode(), {}

    def _read(self, name: str) -> tuple[int, bytes, dict[str, str]]:
        value = self.bucket.objects.get(name)
        if value is None:
            return 404, b"no such object", {}
        match = re.fullmatch(r"bytes=([0-9]+)-([0-9]+)", self.headers.get("Range", ""))
        if match is None:
            return 200, value, {}
        first, last = int(match[1]), int(match[2])
        if first >= len(value):
            return 416, b"", {}
        part = value[first : last + 1]
        return 206, part, {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(value)}"}

    def _upload(self, query: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        name = query["name"]
        if query["uploadType"] == "resumable" and self.command == "POST":
            url = f"https://www.googleapis.com{self.path}&upload_id=1"
            return 200, b"", {"Location": url}
        if query.get("ifGenerationMatch") == "0" and name in self.bucket.objects:
            return 412, b"it exists", {}
        content_range = self.headers.get("Content-Range", f"bytes 0-{len(body) - 1}/{len(body)}")
        if not re.fullmatch(rf"bytes (0-{len(body) - 1}|\*)/{len(body)}", content_range):
            return 501, content_range.encode(), {}  # in parts
        self.bucket.put(name, body)
        return 200, b"{}", {}

    def _list(self, query: dict[str, str]) -> bytes:
        prefix = query.get("prefix", "")
        items, folders = [], set()
        for name in sorted(self.bucket.objects):
            if not name.startswith(prefix):
                continue
            inner, slash, _ = name[len(prefix) :].partition("/")
            if slash and query.get("delimiter") == "/":
                folders.add(f"{prefix}{inner}/")
            else:
                items.append({"name": name})
        items = items[: int(query.get("maxResults", 1000))]
        return json.dumps({"items": items, "prefixes": sorted(folders)}).encode()


@contextlib.contextmanager
def serving(folder: pathlib.Path) -> Iterator[Bucket]:
    """A new bucket. Its certificate is kept in `folder`. Needs the program openssl."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=googleapis.com", "-addext", "subjectAltName=DNS:*.googleapis.com"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    environment = {
        "CURL_CA_BUNDLE": str(certificate),
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any",
    }
    bucket = Bucket(environment)
    handler = type("Handler", (_Handler,), {"bucket": bucket, "context": context})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        environment["https_proxy"] = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield bucket
        finally:
            server.shutdown()
