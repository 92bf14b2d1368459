import pytest
from starlette.responses import Response

from dispatcher.routing import PUBLIC, Doors, add
from dispatcher.violations import pointer
from shared.errors import Unavailable
from tests.dispatcher.fleet import EXECUTIONS, SKILLS, Fleet

FIELDS = {"type", "title", "status", "detail", "instance", "error", "code"}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", f"{SKILLS}/nowhere/at/all", 404, "not_found"),
        ("GET", f"{SKILLS}/7f3f7d67-3c7f-4c2e-8a8e-0123456789ab", 404, "not_found"),
        ("GET", f"{EXECUTIONS}/7f3f7d67-3c7f-4c2e-8a8e-0123456789ab", 404, "not_found"),
        ("GET", f"{SKILLS}/%40scope%2Fname/versions", 404, "skill_not_found"),
        ("DELETE", EXECUTIONS, 405, "method_not_allowed"),
        ("GET", f"{EXECUTIONS}?limit=0", 422, "invalid_input"),
        ("GET", f"{EXECUTIONS}?cursor=nonsense", 422, "invalid_input"),
        ("GET", f"{EXECUTIONS}?sessionId=a%00b", 422, "invalid_input"),
        ("GET", f"{EXECUTIONS}?until=0001-01-01T00:00:00%2B14:00", 422, "invalid_input"),
        ("DELETE", f"{SKILLS}/keys/unheard-of", 404, "not_found"),
        ("DELETE", f"{SKILLS}/keys/a%00b", 422, "invalid_input"),
    ],
)
async def test_every_refusal_is_a_problem_document(
    fleet: Fleet, method: str, path: str, status: int, code: str
) -> None:
    response = await fleet.api.request(method, path)
    assert response.status_code == status
    assert response.headers["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert problem.keys() >= FIELDS
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["error"] == problem["detail"] != ""


async def test_an_accident_inside_is_500_and_says_nothing_of_it(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    async def accident() -> Response:
        """Fail."""
        raise ZeroDivisionError("the secret of /etc/passwd")

    add(fleet.app, "GET", "/accident", accident, scope=PUBLIC)
    response = await fleet.api.get("/accident", headers={"X-Request-Id": "req-1"})
    assert (response.status_code, response.json()["code"]) == (500, "internal")
    assert "secret" not in response.text
    assert "ZeroDivision" not in response.text
    assert response.headers["X-Request-Id"] == "req-1"


async def test_an_absent_part_is_503_and_says_when_to_come_back(fleet: Fleet) -> None:
    async def away() -> Response:
        """Be away."""
        raise Unavailable("The database is not reachable right now")

    add(fleet.app, "GET", "/away", away, scope=PUBLIC)
    response = await fleet.api.get("/away")
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert int(response.headers["Retry-After"]) > 0


async def test_without_postgres_requests_are_503_and_the_process_lives(fleet: Fleet) -> None:
    async def cut(dispatcher: Doors) -> Response:
        """Close the pool under the feet of the others."""
        await dispatcher.pool.close()
        return Response()

    add(fleet.app, "POST", "/cut", cut, scope=PUBLIC)
    await fleet.api.post("/cut")
    for path in ("/readyz", EXECUTIONS, SKILLS):
        response = await fleet.api.get(path)
        assert (response.status_code, response.json()["code"]) == (503, "unavailable"), path
    assert (await fleet.api.get("/healthz")).status_code == 200


async def test_405_and_options_name_every_method_of_the_path(fleet: Fleet) -> None:
    for method, status in (("PATCH", 405), ("OPTIONS", 204)):
        response = await fleet.api.request(method, EXECUTIONS)
        assert response.status_code == status
        assert response.headers["Allow"] == "GET, HEAD, OPTIONS, POST"


async def test_head_is_get_without_the_body(fleet: Fleet) -> None:
    got, asked = await fleet.api.get(SKILLS), await fleet.api.head(SKILLS)
    assert (asked.status_code, asked.content) == (got.status_code, b"")
    assert asked.headers["Content-Length"] == got.headers["Content-Length"]


@pytest.mark.parametrize("sent", ["a b", "x" * 129, "caf\xe9", ""])
async def test_a_request_id_that_is_not_harmless_is_replaced(fleet: Fleet, sent: str) -> None:
    response = await fleet.api.get("/healthz", headers=[(b"x-request-id", sent.encode("latin-1"))])
    assert response.headers["X-Request-Id"] != sent
    assert len(response.headers["X-Request-Id"]) == 32


def test_pointers_escape_what_rfc_6901_escapes() -> None:
    assert pointer(["a/b", "m~n", 0, ""]) == "/a~1b/m~0n/0/"
