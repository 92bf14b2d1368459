"""What a container is made of: pure values in, the engine's create body out.

Every flag of the sandbox stands in ``create_body`` and nowhere else.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

APP = "skillfleet"
LABEL = f"{APP}."
HELPER = "-fence"
"""Ending of the name of a container's helper (see network.py)."""

UID = 65534
"""``nobody``: /dev is writable and executable for uid 0 even under a read-only root."""

WORKDIR = "/workspace"
TMPFS = f"rw,noexec,nosuid,size=64m,uid={UID},gid={UID}"
"""64 MB each; pages count against the memory limit."""

PIDS = 100
SHM_BYTES = 16 * 1024 * 1024
OPEN_FILES = 1024
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """One container's limits; the wire names, since callers know them from the API.

    ``cpuLimit`` is in thousandths of a CPU, ``memoryLimit`` in MB, ``timeout`` in milliseconds.
    """

    cpuLimit: int = 100  # noqa: N815  # the public names of SandboxConfig
    memoryLimit: int = 256  # noqa: N815
    timeout: int = 30_000
    networkEnabled: bool = False  # noqa: N815
    readOnly: bool = True  # noqa: N815


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Who a container belongs to and how long it may live (``deadline_ms``: Unix time)."""

    fleet: str
    worker: str
    execution: UUID
    deadline_ms: int
    role: str = "run"

    def as_dict(self) -> dict[str, str]:
        """Return the labels as the engine stores them."""
        return {
            f"{LABEL}app": APP,
            f"{LABEL}fleet": self.fleet,
            f"{LABEL}worker": self.worker,
            f"{LABEL}execution": str(self.execution),
            f"{LABEL}deadline": str(self.deadline_ms),
            f"{LABEL}role": self.role,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network that a container with network access joins, and its resolvers."""

    name: str
    dns: tuple[str, ...]


def create_body(
    *,
    image: str,
    entrypoint: tuple[str, ...],
    config: SandboxConfig,
    labels: Labels,
    runtime: str | None = None,
    engine_cpus: int | None = None,
    network: Network | None = None,
) -> dict[str, Any]:
    """Build the body of the engine's create call; ``network`` None means no network at all."""
    cpus = config.cpuLimit / 1000
    if engine_cpus:
        cpus = min(cpus, float(engine_cpus))  # the engine refuses more than it has
    return {
        "Image": image,
        # An entry point of ours also voids the image's own entry point and command.
        "Entrypoint": list(entrypoint),
        "Cmd": [],
        "User": f"{UID}:{UID}",
        "WorkingDir": WORKDIR,
        "Hostname": "sandbox",
        # tini passes a signal on to the whole group, not only to the supervisor
        "Env": ["TINI_KILL_PROCESS_GROUP=1", f"HOME={WORKDIR}"],
        "Labels": labels.as_dict(),
        "Healthcheck": {"Test": ["NONE"]},
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        # Beside network "none" this spares engines before 28 a costly hook at every start.
        "NetworkDisabled": network is None,
        "HostConfig": host_config(config, cpus, runtime, network),
    }


def host_config(
    config: SandboxConfig, cpus: float, runtime: str | None, network: Network | None
) -> dict[str, Any]:
    """Build the part of the create body that fences the container in."""
    memory = config.memoryLimit * MIB
    body: dict[str, Any] = {
        "AutoRemove": False,  # a removed container can't tell whether it ran out of memory
        "Binds": [],
        "Mounts": [],
        "Privileged": False,
        "Init": True,
        "ReadonlyRootfs": config.readOnly,
        "CapAdd": [],
        "CapDrop": ["ALL"],
        # No seccomp entry: that is the engine's default profile; run.py checks it has one.
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": PIDS,
        "NanoCpus": round(cpus * 1e9),
        "Memory": memory,
        "MemorySwap": memory,  # unset, the engine would add as much swap again
        "ShmSize": SHM_BYTES,
        "Tmpfs": {"/tmp": TMPFS, WORKDIR: TMPFS},
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Ulimits": ulimits(config, cpus),
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        "NetworkMode": network.name if network else "none",
    }
    if network:
        body["Dns"] = list(network.dns)
    if runtime:
        body["Runtime"] = runtime
    return body


def ulimits(config: SandboxConfig, cpus: float) -> list[dict[str, Any]]:
    """Bound each process; the CPU seconds end a busy loop whose worker has died."""
    cpu_s = math.ceil(config.timeout / 1000 * cpus) + 1
    limits = {"core": 0, "nofile": OPEN_FILES, "cpu": cpu_s}
    return [{"Name": name, "Soft": value, "Hard": value} for name, value in limits.items()]


def fleet_of(database_url: str) -> str:
    """Name the fleet by its database, without the credentials; unrelated fleets share engines."""
    parts = urlsplit(database_url)
    hosts = parts.netloc.rpartition("@")[2]  # several, where there is a standby
    where = f"{hosts}{parts.path}?{parts.query}"
    return hashlib.sha256(where.encode()).hexdigest()[:16]
