"""Scripts that run in a lab: the first process, one for each host, and a stream between two."""

from __future__ import annotations

# The first process of the PID namespace. An ignored SIGCHLD makes the kernel reap orphans.
INIT = """
trap '' CHLD
echo up
cat >/dev/null
"""

# The same with autogroups off until the lab ends. With them a host holds a core for milliseconds
# while hosts that it waits for need the core.
INIT_SHARING_CORES = """
trap '' CHLD
autogroup=/proc/sys/kernel/sched_autogroup_enabled
before=$(cat $autogroup 2>/dev/null)
[ "$before" = 1 ] && echo 0 >$autogroup
echo up
cat >/dev/null
[ "$before" = 1 ] && echo 1 >$autogroup
"""

# The process that keeps one host's namespaces. $1: its name, $2: the text of its /etc/hosts.
# A fresh /sys shows this host's interfaces only; /dev/shm is memory that hosts must not share.
HOST = r"""
set -e
hostname "$1"
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /dev/shm
printf %s "$2" >/dev/shm/hosts
mount --bind /dev/shm/hosts /etc/hosts
ip link set lo up
echo $$
exec sleep infinity
"""

# One TCP stream: the receiver prints its payload in bytes/s. argv: "receive", or target, seconds.
STREAM = """
import socket, sys, time
chunk = bytearray(1 << 18)
if sys.argv[1] == "receive":
    listener = socket.create_server(("", 5001))
    print("ready", flush=True)
    stream, total = listener.accept()[0], 0
    stream.recv_into(chunk)
    start = time.perf_counter()
    while n := stream.recv_into(chunk):
        total += n
    print(total / (time.perf_counter() - start))
else:
    stream = socket.create_connection((sys.argv[1], 5001))
    end = time.perf_counter() + float(sys.argv[2])
    while time.perf_counter() < end:
        stream.sendall(chunk)
"""
