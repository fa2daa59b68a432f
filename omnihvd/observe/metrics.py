"""OMNIHVD_METRICS: serves the figures of omnihvd.stats() to Prometheus."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from omnihvd.launchers import local_rank, process_rank
from omnihvd.statistics import SHARES, meanings, stats

MOST_CONNECTIONS = 16
PAUSE_S = 0.1


def serve(address: str) -> ThreadingHTTPServer:
    """Serves at [host:]port + this rank's number on its host; without a host, on the loopback
    address. OSError when the port is taken. The thread ends with the process."""
    host, _, port = address.rpartition(":")
    server = _Server((host or "127.0.0.1", int(port) + local_rank()), _Handler)
    os.register_at_fork(after_in_child=server.socket.close)  # a child shall not keep the port
    threading.Thread(target=server.serve_forever, name="omnihvd metrics", daemon=True).start()
    return server


class _Server(ThreadingHTTPServer):
    """Bounds connections, so that strangers cannot use up the descriptors of a rank."""

    daemon_threads = True

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's asks DNS for this host's name, too

    def __init__(self, *arguments: Any) -> None:
        self._open: set[Any] = set()
        super().__init__(*arguments)

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:  # no descriptors are left; the client still waits
            time.sleep(PAUSE_S)
            raise

    def verify_request(self, *_: Any) -> bool:
        return len(self._open) < MOST_CONNECTIONS

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)


class _Handler(BaseHTTPRequestHandler):
    timeout = 5  # seconds, of a connection that says nothing

    def do_GET(self) -> None:
        body = text(stats(), process_rank() or 0).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def text(figures: dict[str, Any], rank: int) -> str:
    """The figures in Prometheus' text format."""
    lines: list[str] = []
    meaning = meanings()
    script = re.sub(r'[\\"\n]', "?", Path(sys.argv[0]).name)
    mine = {"script": script, "rank": str(rank)}

    def add(name: str, value: Any, kind: str, **labels: str) -> None:
        if value is None:
            return
        full = f"omnihvd_{name}" + ("_total" if kind == "counter" else "")
        if f"# TYPE {full} {kind}" not in lines:
            said = meaning.get(name, meaning.get(name.split("_")[0], "see `omnihvd stats`"))
            lines.extend([f"# HELP {full} {said}", f"# TYPE {full} {kind}"])
        pairs = ",".join(f'{k}="{v}"' for k, v in {**mine, **labels}.items())
        lines.append(f"{full}{{{pairs}}} {value}")

    for name, value in figures.items():
        if name in SHARES:  # no counters
            add(name, value, "gauge")
        elif isinstance(value, (int, float)):
            add(name, value, "counter")
    for group, label in (("ways", "way"), ("passed", "reason")):
        for unit in ("calls", "bytes", "seconds"):
            for one, counts in figures[group].items():
                if unit in counts:
                    add(f"{group}_{unit}", counts[unit], "counter", **{label: one})
    for name, value in figures["sparse"].items():
        add(f"sparse_{name}", value, "counter")
    return "\n".join(lines) + "\n"
