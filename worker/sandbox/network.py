"""The network for calls that both gates let out: public addresses only, no neighbours, no host.

The fence stands inside each container's own network namespace, as routes that swallow packets; a
program without capabilities can't change them. A helper container that shares the namespace sets
them before the program arrives. So it holds on any engine, also a remote one, and needs no
firewall access from the worker.
"""

from typing import Any

from shared.errors import EngineError, ErrorCode, ExecutionFailed
from worker.sandbox.engine import Engine
from worker.sandbox.spec import HELPER, LABEL, Labels, Network

NAME = "skillfleet-sandbox"
HELPER_IMAGE = "alpine:3.20"
PLAIN_RUNTIMES = (None, "runc", "crun", "io.containerd.runc.v2")
"""Runtimes that use the kernel's routes; gVisor copies them at start and would miss the fence."""

NOT_PUBLIC = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
)
"""IANA's special-purpose registry plus a cloud's control address; 127/8 stays, it is local."""

FENCE = """\
set -e
for range in "$@"; do ip route add blackhole "$range"; done
set -- $(ip -4 route show default)
gateway=$3
set -- $(ip -4 route show dev eth0 scope link)
subnet=$1
address=${subnet%/*}
bits=${subnet#*/}
if [ "$bits" -lt 8 ] || [ "$bits" -gt 30 ]; then exit 1; fi
# Two halves win over the network's own route; the gateway still forwards, it just can't be met.
ip route add blackhole "$address/$((bits + 1))"
old=$IFS; IFS=.; set -- $address; IFS=$old
number=$(( ($1 << 24) + ($2 << 16) + ($3 << 8) + $4 + (1 << (31 - bits)) ))
upper=$((number >> 24)).$((number >> 16 & 255)).$((number >> 8 & 255)).$((number & 255))
ip route add blackhole "$upper/$((bits + 1))"
for hidden in 169.254.169.254 "$gateway" "$upper"; do
  if ip route get "$hidden"; then exit 1; fi
done
if [ -e /proc/net/if_inet6 ] && grep -qv ' lo$' /proc/net/if_inet6; then exit 1; fi
"""
"""Adds the routes and proves them; any failure ends with a code other than 0."""


class Fence:
    """Makes the network once, and closes in each container that joins it."""

    def __init__(self, engine: Engine, *, runtime: str | None, dns: tuple[str, ...]) -> None:
        self._engine = engine
        self._runtime = runtime
        self._dns = dns

    async def network(self) -> Network:
        """Return the network, made when absent; raise ExecutionFailed unless it is safe."""
        if self._runtime not in PLAIN_RUNTIMES:
            raise refused(f"the runtime {self._runtime} can't be fenced in")
        found = await self._engine.network(NAME)
        if found is None:
            await self._engine.create_network(network_body())
            found = await self._engine.network(NAME)
        options = (found or {}).get("Options") or {}
        if not found or found.get("EnableIPv6") or options.get(ICC) != "false":
            raise refused(f"the network {NAME} was made with other options; remove it")
        return Network(name=NAME, dns=self._dns)

    async def close_in(self, name: str, labels: Labels) -> None:
        """Put the fence into a started container; raise ExecutionFailed unless it stands."""
        helper = f"{name}{HELPER}"
        try:
            await self._engine.create(helper, helper_body(name, labels))
            await self._engine.start(helper)
            await self._engine.wait(helper)
            state = await self._engine.inspect(helper)
        except EngineError as error:
            if error.answer is None:
                raise
            raise refused(f"the helper from {HELPER_IMAGE} can't run: {error}") from error
        finally:
            await self._engine.remove(helper)
        if not state or state["State"]["ExitCode"] != 0:
            raise refused("the routes could not be set")


ICC = "com.docker.network.bridge.enable_icc"


def network_body() -> dict[str, Any]:
    """Build the create body of the network."""
    return {
        "Name": NAME,
        "CheckDuplicate": True,
        "Driver": "bridge",
        "EnableIPv6": False,
        "Options": {ICC: "false"},
        "Labels": {f"{LABEL}role": "network"},
    }


def helper_body(name: str, labels: Labels) -> dict[str, Any]:
    """Build the create body of the helper: our command, one capability, the other's namespace."""
    return {
        "Image": HELPER_IMAGE,
        "Entrypoint": ["sh", "-c", FENCE, "fence"],
        "Cmd": list(NOT_PUBLIC),
        "User": "0:0",
        "Labels": labels.as_dict() | {f"{LABEL}role": "fence"},
        "HostConfig": {
            "NetworkMode": f"container:{name}",
            "CapDrop": ["ALL"],
            "CapAdd": ["NET_ADMIN"],
            "SecurityOpt": ["no-new-privileges"],
            "ReadonlyRootfs": True,
            "PidsLimit": 16,
            "Memory": 64 * 1024 * 1024,
            "LogConfig": {"Type": "none", "Config": {}},
        },
    }


def refused(why: str) -> ExecutionFailed:
    """Say that no safe network can be given: better none than an open one."""
    return ExecutionFailed(
        f"Network access for the sandbox can't be made safe: {why}. "
        "Call with networkEnabled false, or have the worker's engine put right",
        code=ErrorCode.SANDBOX_UNAVAILABLE,
    )
