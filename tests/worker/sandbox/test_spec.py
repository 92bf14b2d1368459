from uuid import UUID

from worker.sandbox.spec import Labels, Network, SandboxConfig, create_body, fleet_of

LABELS = Labels(
    fleet="f", worker="w", execution=UUID("01890a5d-ac96-774b-bcce-b302099a8057"), deadline_ms=1234
)
TMPFS = "rw,noexec,nosuid,size=64m,uid=65534,gid=65534"


def test_the_defaults_give_exactly_this_body() -> None:
    body = create_body(image="i:1", entrypoint=("sh",), config=SandboxConfig(), labels=LABELS)
    assert body == {
        "Image": "i:1",
        "Entrypoint": ["sh"],
        "Cmd": [],
        "User": "65534:65534",
        "WorkingDir": "/workspace",
        "Hostname": "sandbox",
        "Env": ["TINI_KILL_PROCESS_GROUP=1", "HOME=/workspace"],
        "Labels": {
            "skillfleet.app": "skillfleet",
            "skillfleet.fleet": "f",
            "skillfleet.worker": "w",
            "skillfleet.execution": "01890a5d-ac96-774b-bcce-b302099a8057",
            "skillfleet.deadline": "1234",
            "skillfleet.role": "run",
        },
        "Healthcheck": {"Test": ["NONE"]},
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "NetworkDisabled": True,
        "HostConfig": {
            "AutoRemove": False,
            "Binds": [],
            "Mounts": [],
            "Privileged": False,
            "Init": True,
            "ReadonlyRootfs": True,
            "CapAdd": [],
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": 100,
            "NanoCpus": 100_000_000,
            "Memory": 256 * 1024 * 1024,
            "MemorySwap": 256 * 1024 * 1024,
            "ShmSize": 16 * 1024 * 1024,
            "Tmpfs": {"/tmp": TMPFS, "/workspace": TMPFS},
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "Ulimits": [
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "nofile", "Soft": 1024, "Hard": 1024},
                {"Name": "cpu", "Soft": 4, "Hard": 4},
            ],
            "LogConfig": {"Type": "none", "Config": {}},
            "RestartPolicy": {"Name": "no"},
            "NetworkMode": "none",
        },
    }


def test_a_call_s_limits_runtime_and_network_change_only_what_they_name() -> None:
    plain = create_body(image="i", entrypoint=("sh",), config=SandboxConfig(), labels=LABELS)
    other = create_body(
        image="i",
        entrypoint=("sh",),
        config=SandboxConfig(cpuLimit=500, memoryLimit=64, timeout=10_000, readOnly=False),
        labels=LABELS,
        runtime="runsc",
        network=Network(name="n", dns=("192.0.2.1",)),
    )
    host = plain["HostConfig"] | {
        "NanoCpus": 500_000_000,
        "Memory": 64 * 1024 * 1024,
        "MemorySwap": 64 * 1024 * 1024,
        "ReadonlyRootfs": False,
        "Runtime": "runsc",
        "NetworkMode": "n",
        "Dns": ["192.0.2.1"],
        "Ulimits": [*plain["HostConfig"]["Ulimits"][:2], {"Name": "cpu", "Soft": 6, "Hard": 6}],
    }
    assert other == plain | {"NetworkDisabled": False, "HostConfig": host}


def test_more_cpus_than_the_engine_has_are_cut_to_those_it_has() -> None:
    body = create_body(
        image="i",
        entrypoint=("sh",),
        config=SandboxConfig(cpuLimit=8000),
        labels=LABELS,
        engine_cpus=2,
    )
    assert body["HostConfig"]["NanoCpus"] == 2_000_000_000


def test_a_fleet_is_named_by_its_database_and_not_by_the_credentials() -> None:
    assert fleet_of("postgresql://a:secret@db:5432/x") == fleet_of("postgresql://b:other@db:5432/x")
    assert fleet_of("postgresql://db:5432/x") != fleet_of("postgresql://db:5432/y")
