"""What worker/loop.py and shared/queue.py rely on inside arq; pin and file move together."""

import inspect
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from arq import constants
from arq.connections import ArqRedis
from arq.jobs import DeserializationError, deserialize_job_raw, serialize_job
from arq.utils import to_unix_ms
from arq.worker import Worker, func

from shared.queue import FUNCTION, deserialize, serialize

if TYPE_CHECKING:
    from arq.typing import WorkerCoroutine


async def nothing(_: dict[Any, Any]) -> None:
    return None


@pytest.fixture
async def worker() -> Worker:
    return Worker(
        functions=[func(cast("WorkerCoroutine", nothing), name=FUNCTION)],
        queue_name="q",
        redis_pool=ArqRedis(),
        handle_signals=False,
        max_jobs=3,
        job_timeout=10,
        keep_result=0,
        poll_delay=0.25,
        max_tries=9,
        job_serializer=serialize,
        job_deserializer=deserialize,
    )


def test_the_version_is_the_one_that_was_read() -> None:
    assert version("arq").startswith("0.28.")


async def test_the_members_that_are_used_are_there_and_mean_the_same(worker: Worker) -> None:
    assert worker.tasks == {}
    assert (worker.job_counter, worker.max_jobs) == (0, 3)
    assert worker.allow_pick_jobs is True
    assert worker.poll_delay_s == 0.25
    assert worker.queue_name == "q"
    assert worker.loop.is_running()
    assert isinstance(worker.pool, ArqRedis)
    assert worker._pool is worker.pool
    assert (worker.jobs_complete, worker.jobs_failed) == (0, 0)
    for name in ("main", "heart_beat"):
        assert inspect.iscoroutinefunction(getattr(worker, name)), name


def test_nothing_of_arq_s_loop_runs_but_what_its_main_calls() -> None:
    source = inspect.getsource(Worker.heart_beat)
    assert "self.record_health()" in source
    assert "self.run_cron(" in source


def test_the_keys_are_those_of_the_wire() -> None:
    assert constants.job_key_prefix == "arq:job:"
    assert constants.in_progress_key_prefix == "arq:in-progress:"
    assert constants.retry_key_prefix == "arq:retry:"
    assert constants.result_key_prefix == "arq:result:"
    assert constants.abort_jobs_ss == "arq:abort"


def test_a_job_s_body_has_the_five_fields() -> None:
    body = serialize_job(FUNCTION, ("x",), {"k": 1}, 2, 3, serializer=serialize)
    assert msgspec.msgpack.decode(body) == {
        "t": 2,
        "f": FUNCTION,
        "a": ["x"],
        "k": {"k": 1},
        "et": 3,
    }
    read = deserialize_job_raw(body, deserializer=deserialize)
    assert list(read) == [FUNCTION, ["x"], {"k": 1}, 2, 3]


def test_a_refusing_deserializer_is_met_as_a_deserialization_error() -> None:
    with pytest.raises(DeserializationError):
        deserialize_job_raw(b"\x80\x04.", deserializer=deserialize)


def test_times_are_whole_milliseconds_less_than_one_away() -> None:
    for microseconds in (1, 499, 500, 501, 999):
        moment = datetime(2026, 1, 1, microsecond=microseconds, tzinfo=UTC)
        assert abs(to_unix_ms(moment) - moment.timestamp() * 1000) < 1
