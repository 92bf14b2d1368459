"""The fence: with both gates open the program meets public addresses and nothing else."""

from uuid import uuid4

import pytest

from shared.errors import ErrorCode, ExecutionFailed
from tests.worker.sandbox.containers import ALPINE, docker, own_settings, python, sh, started
from worker.sandbox.network import NAME
from worker.sandbox.outcome import Cause
from worker.sandbox.spec import SandboxConfig

pytestmark = pytest.mark.docker

OPEN = SandboxConfig(cpuLimit=1000, networkEnabled=True)
GATE = {"network_enabled": True}

PROBE = """\
import errno, socket
def reaches(address):
    try:
        socket.create_connection((address, 9), 0.3).close()
    except TimeoutError:
        return "sent"
    except OSError as error:
        return "sent" if error.errno in (errno.ECONNREFUSED, errno.EHOSTUNREACH) else "hidden"
    return "sent"
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.connect(("1.1.1.1", 9))
mine = own.getsockname()[0]
gateway = mine.rsplit(".", 1)[0] + ".1"
for address in ("169.254.169.254", "10.1.2.3", "172.17.0.1", "192.168.0.1", "100.64.0.1",
                "168.63.129.16", "224.0.0.1", gateway, "1.1.1.1"):
    print(reaches(address), "gateway" if address == gateway else address)
print(open("/proc/net/route").read().count("eth0"))
"""


async def test_private_metadata_and_neighbouring_addresses_are_hidden(docker: None) -> None:
    async with started(own_settings(sandbox=GATE)) as sandbox:
        result = await python(sandbox, PROBE, config=OPEN)
        assert (result.cause, result.stderr) == (Cause.EXITED, "")
        lines = [line.split() for line in result.stdout.splitlines()[:9]]
        told = {address: verdict for verdict, address in lines}
        assert told.pop("1.1.1.1") == "sent", "public addresses have a way out"
        assert set(told.values()) == {"hidden"}, told
        assert len(told) == 8
        assert result.network_enabled is True


async def test_the_program_can_t_take_the_fence_down(docker: None) -> None:
    async with started(own_settings(sandbox=GATE)) as sandbox:
        script = (
            "ip route del blackhole 10.0.0.0/8 2>/dev/null; echo $?; ip route | grep -c blackhole"
        )
        result = await sh(sandbox, script, config=OPEN)
        first, second = result.stdout.split()
        assert first != "0"
        assert int(second) >= 15


async def test_without_the_call_s_wish_there_is_no_network_though_the_gate_is_open(
    docker: None,
) -> None:
    async with started(own_settings(sandbox=GATE)) as sandbox:
        result = await sh(sandbox, "ls /sys/class/net")
        assert (result.stdout, result.network_enabled) == ("lo\n", False)


async def test_a_runtime_with_routes_of_its_own_gets_no_network(docker: None) -> None:
    async with started(own_settings(sandbox={**GATE, "runtime": "runsc"})) as sandbox:
        with pytest.raises(ExecutionFailed, match="can't be made safe") as caught:
            await sandbox.run(ALPINE, ("true",), {}, OPEN, execution_id=uuid4())
        assert caught.value.code is ErrorCode.SANDBOX_UNAVAILABLE


async def test_the_network_keeps_containers_apart(docker: None) -> None:
    async with started(own_settings(sandbox=GATE)) as sandbox:
        await sh(sandbox, "true", config=OPEN)
    assert inspected("{{.Driver}} {{.EnableIPv6}}") == "bridge false"
    assert inspected('{{index .Options "com.docker.network.bridge.enable_icc"}}') == "false"


def inspected(template: str) -> str:
    return docker("network", "inspect", "--format", template, NAME)
