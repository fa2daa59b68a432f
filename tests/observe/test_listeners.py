"""A rank's listeners: strangers, a lack of descriptors, and children."""

from __future__ import annotations

import os
import subprocess
import sys

# A process that can be watched, and how others see it.
BEGIN = """
import contextlib, json, os, psutil, resource, socket, time, urllib.request
from omnihvd.observe import metrics, watchable

port = metrics.serve("127.0.0.1:0").server_address[1]
watchable.serve()
name = f"\\0{watchable.PREFIX}{os.getuid()}-{os.getpid()}"

def ask_metrics():
    with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=20) as answer:
        return b"omnihvd_calls_total" in answer.read()

def ask_as_top():
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(10)
        asking.connect(name)
        return json.loads(asking.makefile().read())["pid"] == os.getpid()
"""
STRANGERS = """
held = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
time.sleep(0.5)
print(len(os.listdir("/proc/self/fd")) < 100 + 40)
for connection in held:
    connection.close()
time.sleep(0.5)
print(ask_metrics())
"""
OUT_OF_DESCRIPTORS = """
KINDS = 4 * [socket.AF_INET, socket.AF_UNIX] + 8 * [socket.AF_UNIX]
asking = [socket.socket(kind) for kind in KINDS]
resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
opened = []

def use_up():
    with contextlib.suppress(OSError):
        while True:
            opened.append(os.open("/dev/null", os.O_RDONLY))

def ask_and_use_up(asking):
    for connection in asking:
        connection.settimeout(10)
        connection.connect(name if connection.family == socket.AF_UNIX else ("127.0.0.1", port))
    for _ in range(20):  # what threads give back, too
        time.sleep(0.05)
        use_up()

use_up()
ask_and_use_up(asking[:2])  # a waiting accept() had a descriptor: no later one has
ask_and_use_up(asking[2:])
used = time.process_time()
time.sleep(1)
print(time.process_time() - used < 0.1)
for descriptor in opened:
    os.close(descriptor)
for connection in asking:
    connection.close()
print(ask_metrics() and ask_as_top())
"""
CHILD = """
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
time.sleep(0.5)
sockets = lambda pid: len(psutil.Process(pid).net_connections("all"))
print(sockets(os.getpid()) >= 2 and sockets(child) == 0)
os.kill(child, 9)
print(ask_metrics() and ask_as_top())
"""


def run(code: str) -> list[str]:
    env = {k: v for k, v in os.environ.items() if k != "OMNIHVD_METRICS"}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_strangers_at_the_metrics_are_few() -> None:
    assert run(STRANGERS) == ["True", "True"]


def test_a_lack_of_descriptors_passes() -> None:
    assert run(OUT_OF_DESCRIPTORS) == ["True", "True"]


def test_a_child_does_not_keep_the_ports() -> None:
    assert run(CHILD) == ["True", "True"]
