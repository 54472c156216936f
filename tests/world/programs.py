"""Programs that stand in for the real ones where only their lives matter, and how a test hears that one has ended."""

from __future__ import annotations

import os
import select

NODE = """
import sys, tomllib
from pathlib import Path
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404)
        self.send_header("content-length", "0")
        self.end_headers()

node = tomllib.load(open(sys.argv[-1], "rb"))["node"]
Path(node["data_dir"]).mkdir(exist_ok=True)
(Path(node["data_dir"]) / "operator.token").write_text("the-token-of-the-operator")
port = int(node["listen"][0].rpartition(":")[2])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
"""A node that says it is ready and sells nothing."""


def gone_within(pid: int, seconds: float) -> bool:
    """True when the process ends in that time; told by the kernel, not by looking again and again."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)
