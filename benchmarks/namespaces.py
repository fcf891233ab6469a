# SPDX-License-Identifier: Apache-2.0
"""Creates hosts on one machine: network namespaces behind a bridge, with links that tc limits.

A host's link is a pair of virtual interfaces. A token-bucket filter at each end limits the bytes
that the host sends and receives, including the headers of Ethernet, IP and TCP. Needs root and
iproute2. Every object that is created has a name with this process's ID, and is removed at the end;
nothing else is changed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

INTERFACE = "eth0"  # of each host

# The token-bucket filter at each end of a link lets up to BURST bytes pass at once. Like a switch
# with full buffers, it drops packets that would wait longer than QUEUE.
BURST = "128kb"
QUEUE = "50ms"

# The hosts' TCP congestion control. Every Linux kernel has reno. bbr would limit a call to the rate
# that it found during the previous call; reno does not.
CONGESTION = "reno"
CONGESTION_FILE = "/proc/sys/net/ipv4/tcp_congestion_control"

AGENT = """\
#!/bin/sh
# AGENT ADDRESS COMMAND...: what mpirun calls in place of ssh. Enters the host's namespaces.
host={prefix}h${{1##*.}}
shift
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0"; exec sh -c "$*"' "$host" "$@"
"""


class SetUpError(RuntimeError):
    """Raised if this machine cannot create hosts. The message gives the reason."""


@dataclass(frozen=True)
class Hosts:
    """Hosts 0, 1, … that share one subnet, separate from other networks of this machine."""

    addresses: list[str]
    subnet: str  # of the hosts and of this machine's end of the bridge
    agent: Path  # mpirun's plm_rsh_agent

    def mpirun(self, ranks_per_host: int = 1) -> list[str]:
        """Returns mpirun's arguments for ranks on these hosts that communicate only over the hosts'
        links."""
        hosts = ",".join(f"{address}:{ranks_per_host}" for address in self.addresses)
        settings = {
            "plm_rsh_agent": str(self.agent),
            "plm_rsh_no_tree_spawn": "1",
            "oob_tcp_if_include": self.subnet,
            "btl": "tcp,self",
            "btl_tcp_if_include": self.subnet,
        }
        arguments = ["-n", str(ranks_per_host * len(self.addresses)), "--host", hosts]
        for name, value in settings.items():
            arguments += ["--mca", name, value]
        return arguments


def why_not() -> str:
    """Returns the reason why namespaces cannot be created, or an empty text if they can."""
    if os.geteuid() != 0:
        return "needs root (network namespaces)"
    for tool in ("ip", "tc", "unshare", "mpirun"):
        if shutil.which(tool) is None:
            return f"needs {tool} (Debian: iproute2, util-linux, openmpi-bin)"
    return ""


def _run(command: str, *last: str) -> str:
    """Runs a command, which is split at blanks, and returns its output. `last`: further arguments,
    which are not split."""
    done = subprocess.run([*command.split(), *last], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetUpError(f"'{' '.join((command, *last))}' failed: {done.stderr.strip()}")
    return done.stdout


def _remove(command: str) -> None:
    subprocess.run(command.split(), capture_output=True, check=False)


def _remove_host(name: str) -> None:
    pids = subprocess.run(
        ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
    ).stdout
    for pid in pids.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _remove(f"ip netns del {name}")


def _free_subnet() -> str:
    """Returns the first three numbers of an unused subnet in the range that is reserved for
    benchmarks (RFC 2544)."""
    addresses = _run("ip -o -4 address show")
    for number in range(256):
        subnet = f"198.18.{(os.getpid() + number) % 256}"
        if f" {subnet}." not in addresses:
            return subnet
    raise SetUpError("all networks in 198.18.0.0/16 are in use")


def _limit(interface: str, rate: str, where: str = "") -> None:
    _run(f"{where} tc qdisc add dev {interface} root tbf rate {rate} burst {BURST} latency {QUEUE}")


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _leave(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _leave_in_order(stack: contextlib.ExitStack) -> None:
    """Makes signals that would end this process raise an exception instead, so that the callbacks
    of `stack`, which remove the hosts, still run. While the callbacks run, these signals are
    blocked and wait."""
    for number in ENDING[1:]:
        stack.callback(signal.signal, number, signal.signal(number, _leave))
    stack.callback(signal.pthread_sigmask, signal.SIG_UNBLOCK, ENDING)


@contextlib.contextmanager
def hosts(count: int, rate: str) -> Iterator[Hosts]:
    """Creates `count` hosts. Their links carry `rate` (in tc's notation, for example 1gbit) in each
    direction."""
    reason = why_not()
    if reason:
        raise SetUpError(reason)
    prefix = f"cpd{os.getpid()}"
    with contextlib.ExitStack() as stack:
        _leave_in_order(stack)
        subnet = _free_subnet()
        bridge = f"{prefix}b"
        _run(f"ip link add {bridge} type bridge")
        stack.callback(_remove, f"ip link del {bridge}")
        _run(f"ip address add {subnet}.254/24 dev {bridge}")
        _run(f"ip link set {bridge} up")
        for number in range(1, count + 1):
            name, port = f"{prefix}h{number}", f"{prefix}p{number}"
            _run(f"ip netns add {name}")
            stack.callback(_remove_host, name)
            _run(f"ip link add {port} type veth peer name {INTERFACE} netns {name}")
            stack.callback(_remove, f"ip link del {port}")
            _run(f"ip link set {port} master {bridge} up")
            _run(f"ip -n {name} address add {subnet}.{number}/24 dev {INTERFACE}")
            _run(f"ip -n {name} link set {INTERFACE} up")
            _run(f"ip -n {name} link set lo up")
            _limit(port, rate)
            _limit(INTERFACE, rate, f"ip netns exec {name}")
            _run(f"ip netns exec {name} sh -c", f"echo {CONGESTION} >{CONGESTION_FILE}")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
        agent = folder / "agent"
        agent.write_text(AGENT.format(prefix=prefix))
        agent.chmod(0o700)
        addresses = [f"{subnet}.{number}" for number in range(1, count + 1)]
        stack.callback(signal.pthread_sigmask, signal.SIG_BLOCK, ENDING)
        yield Hosts(addresses, f"{subnet}.0/24", agent)
