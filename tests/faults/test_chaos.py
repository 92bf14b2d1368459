"""Everything that may die, freeze, forget or be cut off does so under a steady load.

The faults are drawn at random; the seed is printed, and SKILLFLEET_FAULT_SEED repeats the draw.
"""

import asyncio
import json
import os
import random
import time
from pathlib import Path

import pytest

from shared.tasks import end
from tests.factories import install, redis_to
from tests.faults import judge, plans
from tests.faults.cluster import Cluster, cluster
from tests.faults.load import Load
from tests.faults.servers import servers
from tests.services import keys_without_ttl
from tests.signals import until

SECONDS = float(os.environ.get("SKILLFLEET_FAULT_SECONDS", "25"))
PER_SECOND = 240.0
DRAIN_S = 120.0
SKILLS = ("effect", "effect-once", "effect-flaky", "effect-fails", "effect-late")


@pytest.mark.timeout(SECONDS + 400)
async def test_nothing_is_lost_or_done_twice_whatever_happens(tmp_path: Path) -> None:
    seed = int(os.environ.get("SKILLFLEET_FAULT_SEED") or random.randrange(1_000_000))
    print(f"seed {seed}")
    log = tmp_path / "effects"
    async with servers() as found, cluster(found, tmp_path) as made:
        pool = await made.pool()
        await pool.execute(judge.MOVES)
        for name in SKILLS:
            await install(pool, name, handler_code=name, max_retries=90)
        await pool.execute("UPDATE registry_epoch SET epoch = epoch + 1")
        await asyncio.gather(*(known(made, room.url) for room in made.dispatchers))
        over = asyncio.Event()
        load = Load(made, random.Random(seed), log, PER_SECOND)
        began = time.monotonic()
        loading = asyncio.create_task(load.run(over))
        supervising = asyncio.create_task(made.supervise())
        drawing = asyncio.create_task(plans.drawn(made, random.Random(seed + 1), over))
        done, _ = await asyncio.wait({loading, drawing}, timeout=SECONDS)
        over.set()
        for task in done:
            task.result()  # neither ends by itself
        counts = await drawing
        await loading
        took = time.monotonic() - began

        async def drained() -> bool:
            return not await pool.fetchval(
                "SELECT count(*) FROM skill_executions WHERE ended IS NULL"
            )

        await until(drained, f"all have ended (seed {seed})", deadline_s=DRAIN_S)
        await end(supervising)
        report = {
            "seed": seed,
            "seconds": round(took),
            "faults": counts.total(),
            "kinds": dict(counts.most_common()),
            "accepted": len(load.ledger.accepted),
            "perSecond": round(len(load.ledger.accepted) / took),
            "retried": load.ledger.retried,
            "unsure": load.ledger.unsure,
            "drainS": round(time.monotonic() - began - took, 1),
            "endings": {
                f"{row['status']} {row['error_code'] or ''}".strip(): row["n"]
                for row in await pool.fetch(
                    "SELECT status, error_code, count(*) AS n FROM skill_executions "
                    "GROUP BY status, error_code ORDER BY n DESC"
                )
            },
        }
        print(json.dumps(report, indent=1))
        wrong = await judge.verdict(pool, load.ledger, log)
        wrong += [f"{r.name} ended by itself: {r.logged()[-2000:]}" for r in made.dead()]
        assert not wrong, f"seed {seed}: {len(wrong)} things:\n" + "\n".join(wrong[:20])

        async def forgotten() -> bool:
            async with redis_to(found.redis_url) as client:
                return await keys_without_ttl(client) == []

        await until(forgotten, "no key stays for ever", deadline_s=30)
        await pool.close()


async def known(made: Cluster, url: str) -> None:
    """Wait until a dispatcher knows the skills."""
    import httpx

    from tests.services import MANAGEMENT_TOKEN

    async with httpx.AsyncClient(
        base_url=url, headers={"Authorization": f"Bearer {MANAGEMENT_TOKEN}"}, trust_env=False
    ) as http:

        async def there() -> bool:
            answer = await http.get("/api/skills/effect-late/versions")
            return bool(answer.is_success and answer.json()["data"])

        await until(there, "the dispatcher knows the skills")
    assert made.dispatchers
