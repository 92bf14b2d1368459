"""Which images may be used, which are here, and fetching those that are not, ahead of any call.

A call never waits for a pull: an absent image is an error at once that says what to do.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from shared.errors import EngineError, ErrorCode, ExecutionFailed
from shared.settings import Settings
from worker.sandbox.engine import Engine

CHECK_S = 30.0
"""How often the upkeep looks at the images, while all is well."""

AWAY_S = 2.0
"""How often it looks for the engine, while that is away."""

PULL_AGAIN_S = 300.0
"""How long after a failed pull the next one may begin."""

PRESENT = "present"
MB = 1_000_000

log = structlog.get_logger(__name__)


class Images:
    """The allowlist, and the state of each image on it in words (see Sandbox.state)."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._allowed = settings.sandbox_images
        self._pulls = settings.sandbox.pull_policy == "missing"
        self._pull_s = settings.sandbox.pull_timeout_ms / 1000
        self._not_before: dict[str, float] = {}
        self.state: dict[str, str] = dict.fromkeys(self._allowed, "unknown")

    def check(self, image: str) -> None:
        """Raise ExecutionFailed unless the allowlist holds exactly this reference."""
        if image not in self._allowed:
            raise ExecutionFailed(
                f"Sandbox image is not allowed: {image}", code=ErrorCode.IMAGE_NOT_ALLOWED
            )

    async def require(self, image: str) -> None:
        """Raise ExecutionFailed at once when the image is not here; EngineError from the engine."""
        if self.state[image] == PRESENT:
            return
        if not await self._engine.has_image(image):
            raise absent(image, self.state[image])
        self.state[image] = PRESENT

    def lost(self, image: str) -> ExecutionFailed:
        """Note that an image thought present is gone; return the error for the call."""
        self.state[image] = "unknown"
        return absent(image, "removed")

    async def upkeep(self) -> None:
        """Look after the engine and the images until cancelled; a failure is met again later."""
        while True:
            try:
                await self._engine.connect()
                await self._refresh_all()
            except EngineError as error:
                log.debug("sandbox.engine_away", reason=str(error))
            except Exception:
                log.exception("sandbox.upkeep_failed")
            ready = self._engine.state == "ready"
            await asyncio.sleep(CHECK_S if ready else AWAY_S)

    async def _refresh_all(self) -> None:
        """Look for every image; one's failure doesn't stop another's pull."""
        work = map(self._refresh, self._allowed)
        for result in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _refresh(self, image: str) -> None:
        """Look for one image; fetch it when it is absent and the policy says so."""
        if await self._engine.has_image(image):
            self.state[image] = PRESENT
        elif not self._pulls:
            self.state[image] = "unreachable: absent, and SKILLS_SANDBOX_PULL_POLICY is never"
        elif asyncio.get_running_loop().time() >= self._not_before.get(image, 0.0):
            await self._pull(image)

    async def _pull(self, image: str) -> None:
        """Pull an image within its own time limit, telling the progress in ``state``."""
        self.state[image] = "pulling"
        log.info("sandbox.pull_started", image=image)
        layers: dict[str, tuple[int, int]] = {}
        try:
            async for message in self._engine.pull(image, self._pull_s):
                self.state[image] = progress(layers, message)
            found = await self._engine.has_image(image)
            self.state[image] = PRESENT if found else "unreachable: the pull brought nothing"
            log.info("sandbox.pull_ended", image=image, state=self.state[image])
        except EngineError as error:
            self._not_before[image] = asyncio.get_running_loop().time() + PULL_AGAIN_S
            self.state[image] = f"unreachable: {error}"
            log.warning("sandbox.pull_failed", image=image, reason=str(error))


def progress(layers: dict[str, tuple[int, int]], message: Mapping[str, Any]) -> str:
    """Add one of the engine's messages to what is known of the layers; return it in words."""
    detail = message.get("progressDetail") or {}
    if message.get("status") == "Downloading" and detail.get("total"):
        layers[str(message.get("id"))] = (int(detail.get("current", 0)), int(detail["total"]))
    elif (layer := str(message.get("id"))) in layers and message.get("status") != "Downloading":
        layers[layer] = (layers[layer][1], layers[layer][1])
    if not layers:
        return "pulling"
    done, total = (sum(column) for column in zip(*layers.values(), strict=True))
    return f"pulling {done / MB:.1f} of {total / MB:.1f} MB"


def absent(image: str, state: str) -> ExecutionFailed:
    """Say that an image is not here, why, and what helps."""
    why = f" ({state})" if state not in ("unknown", PRESENT) else ""
    return ExecutionFailed(
        f"Sandbox image {image} is not on this worker's engine{why}. "
        f"Wait for the pull to end, or run `docker pull {image}` there",
        code=ErrorCode.IMAGE_UNAVAILABLE,
    )
