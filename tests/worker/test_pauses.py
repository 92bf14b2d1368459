import pytest

from shared import pauses
from shared.pauses import Kind
from shared.queue import Entry
from shared.states import Status
from tests.factories import has_status, row, serving, submit
from tests.signals import until
from worker import reaper
from worker.room import Room

NAMES: dict[Kind, str] = {"queue": "direct", "skill": "echo", "owner": "key-1"}


@pytest.mark.parametrize("kind", NAMES)
async def test_what_is_paused_waits_and_goes_on_afterwards(
    room: Room, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "UNHEARD_S", 0.0)
    await pauses.pause(room.pool, kind, NAMES[kind], "test")
    await room.registry.changed()
    held = await submit(room.executions, skill_name="echo", api_key_id="key-1")
    other = await submit(room.executions, skill_name="free", api_key_id="key-2")
    entries = [Entry(i, 0, "direct", "normal") for i in (held, other)]
    async with serving(room):
        await room.queue.put(entries)
        if kind != "queue":
            await until(lambda: has_status(room.pool, other, Status.SUCCESS), "the other runs")

        async def dropped() -> bool:
            return held in {e.execution_id for e in await room.queue.missing(entries)}

        await until(dropped, "its entry goes")
        await reaper.sweep(room)
        assert held in {e.execution_id for e in await room.queue.missing(entries)}, "nor rung for"
        assert (await row(room.pool, held))["status"] == "pending"
        await pauses.resume(room.pool, kind, NAMES[kind], "test")
        await room.registry.changed()
        await reaper.sweep(room)
        await until(lambda: has_status(room.pool, held, Status.SUCCESS), "it goes on")
