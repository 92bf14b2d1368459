import time
from uuid import uuid4

import pytest

from shared.errors import ErrorCode, ExecutionFailed
from tests.signals import until
from tests.worker.sandbox.containers import own_settings, sh, started
from worker.sandbox.images import progress
from worker.sandbox.run import Sandbox

ABSENT = "localhost:9/skillfleet-no-such-image:1"


def own_sandbox(pull_policy: str) -> Sandbox:
    settings = own_settings(
        allowed={"sandbox_images": (ABSENT,)}, sandbox={"pull_policy": pull_policy}
    )
    return Sandbox(settings, worker_id=uuid4().hex)


@pytest.mark.parametrize("image", ["alpine:3.21", "alpine", "alpine:3.20 ", "ALPINE:3.20", ""])
async def test_only_an_exact_reference_is_allowed_and_no_engine_is_asked(image: str) -> None:
    sandbox = Sandbox(own_settings(), worker_id="w")
    with pytest.raises(ExecutionFailed) as caught:
        await sandbox.run(image, ("true",), execution_id=uuid4())
    assert caught.value.message == f"Sandbox image is not allowed: {image}"
    assert caught.value.code is ErrorCode.IMAGE_NOT_ALLOWED
    assert sandbox.state()["engine"] == "unknown"


@pytest.mark.docker
async def test_an_absent_image_fails_the_call_at_once_without_a_pull(docker: None) -> None:
    sandbox = own_sandbox("missing")
    before = time.monotonic()
    with pytest.raises(ExecutionFailed, match=f"docker pull {ABSENT}") as caught:
        await sandbox.run(ABSENT, ("true",), execution_id=uuid4())
    assert time.monotonic() - before < 2
    assert caught.value.code is ErrorCode.IMAGE_UNAVAILABLE
    await sandbox.close()


@pytest.mark.docker
@pytest.mark.parametrize(
    ("policy", "state"),
    [
        ("never", "unreachable: absent, and SKILLS_SANDBOX_PULL_POLICY is never"),
        ("missing", "unreachable: "),
    ],
)
async def test_the_upkeep_says_why_an_image_can_t_be_had(
    docker: None, policy: str, state: str
) -> None:
    sandbox = own_sandbox(policy)
    await sandbox.start()

    async def told() -> bool:
        return str(sandbox.state()["images"][ABSENT]).startswith(state)

    await until(told, "the absent image is told")
    with pytest.raises(ExecutionFailed, match="unreachable: "):
        await sandbox.run(ABSENT, ("true",), execution_id=uuid4())
    await sandbox.close()


@pytest.mark.docker
async def test_an_image_removed_under_us_is_an_absent_image(docker: None) -> None:
    settings = own_settings(allowed={"sandbox_images": (ABSENT,)})
    async with started(settings) as sandbox:
        await sh(sandbox, "true")
        sandbox._images.state[ABSENT] = "present"
        with pytest.raises(ExecutionFailed) as caught:
            await sandbox.run(ABSENT, ("true",), execution_id=uuid4())
        assert caught.value.code is ErrorCode.IMAGE_UNAVAILABLE
        assert sandbox.state()["images"][ABSENT] != "present"


def test_a_pull_s_progress_is_told_in_megabytes() -> None:
    layers: dict[str, tuple[int, int]] = {}
    assert progress(layers, {"status": "Pulling from x", "id": "1"}) == "pulling"
    some = {"status": "Downloading", "id": "a", "progressDetail": {"current": 1e6, "total": 4e6}}
    assert progress(layers, some) == "pulling 1.0 of 4.0 MB"
    more = {"status": "Downloading", "id": "b", "progressDetail": {"current": 2e6, "total": 2e6}}
    assert progress(layers, more) == "pulling 3.0 of 6.0 MB"
    assert progress(layers, {"status": "Pull complete", "id": "a"}) == "pulling 6.0 of 6.0 MB"
