import base64

import pytest

from shared.states import Status
from tests.dispatcher.fleet import EXECUTIONS, SKILLS, Fleet


async def test_a_cursor_goes_through_everything_once_while_more_comes_in(fleet: Fleet) -> None:
    await fleet.install()
    first = [(await fleet.submit())["id"] for _ in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        query = {"limit": 3, **({"cursor": cursor} if cursor else {})}
        page = (await fleet.api.get(EXECUTIONS, params=query)).json()
        seen += [row["id"] for row in page["data"]]
        assert page["total"] is page["totalPages"] is None
        await fleet.submit()
        if (cursor := page["nextCursor"]) is None:
            break
    assert seen == first[::-1]


async def test_a_page_number_counts_and_jumps(fleet: Fleet) -> None:
    await fleet.install()
    made = [(await fleet.submit())["id"] for _ in range(5)]
    page = (await fleet.api.get(EXECUTIONS, params={"page": 2, "limit": 2})).json()
    assert [row["id"] for row in page["data"]] == [made[2], made[1]]
    assert (page["total"], page["page"], page["limit"], page["totalPages"]) == (5, 2, 2, 3)
    beyond = (await fleet.api.get(EXECUTIONS, params={"page": 9, "limit": 2})).json()
    assert (beyond["data"], beyond["nextCursor"], beyond["total"]) == ([], None, 5)


async def test_count_alone_counts_what_the_filters_leave(fleet: Fleet) -> None:
    await fleet.install()
    one = await fleet.submit(sessionId="s-1")
    await fleet.submit(sessionId="s-2")
    await fleet.run(one["id"])
    for query, total in (
        ({}, 2),
        ({"sessionId": "s-1"}, 1),
        ({"status": Status.SUCCESS}, 1),
        ({"status": Status.SUCCESS, "sessionId": "s-2"}, 0),
        ({"skillName": "echo"}, 2),
        ({"skillId": one["skillId"]}, 2),
        ({"apiKeyId": "nobody"}, 0),
        ({"since": "2020-01-01T00:00:00Z", "until": "2999-01-01T00:00:00Z"}, 2),
        ({"since": "0001-01-01T00:00:00Z"}, 2),
        ({"until": "1960-01-01T00:00:00Z"}, 0),
        ({"since": "9999-12-31T00:00:00Z"}, 0),
    ):
        page = (await fleet.api.get(EXECUTIONS, params={"count": "true", **query})).json()
        assert page["total"] == total, query
        assert len(page["data"]) == total


async def test_limits_above_the_maximum_are_the_maximum(fleet: Fleet) -> None:
    page = (await fleet.api.get(SKILLS, params={"limit": 10**20})).json()
    assert page["limit"] == 200
    assert (await fleet.api.get(SKILLS)).json()["limit"] == 50


async def test_page_and_cursor_do_not_go_together(fleet: Fleet) -> None:
    response = await fleet.api.get(EXECUTIONS, params={"page": 1, "cursor": "x"})
    assert response.status_code == 422


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"[1]",
        b'["x"]',
        b'["a","b","c"]',
        b'["a\\u0000","b",""]',
        b"\xff",
        b"null",
    ],
)
@pytest.mark.parametrize("path", [EXECUTIONS, SKILLS, f"{SKILLS}/keys"])
async def test_a_cursor_of_somebody_elses_making_is_refused_or_harmless(
    fleet: Fleet, path: str, text: bytes
) -> None:
    cursor = base64.urlsafe_b64encode(text).decode()
    response = await fleet.api.get(path, params={"cursor": cursor})
    assert response.status_code == 422


async def test_skills_are_paged_by_name_over_all_owners(fleet: Fleet) -> None:
    wanted = []
    for name, owner in (("b", "key-1"), ("a", "key-2"), ("b", None), ("c", None)):
        made = await fleet.install(name, **({"apiKeyId": owner} if owner else {}))
        wanted.append((name, owner or "system", made["id"]))
    seen = []
    cursor = None
    while True:
        query = {"limit": 1, **({"cursor": cursor} if cursor else {})}
        page = (await fleet.api.get(SKILLS, params=query)).json()
        seen += [(row["name"], row["apiKeyId"], row["id"]) for row in page["data"]]
        if (cursor := page["nextCursor"]) is None:
            break
    assert seen == sorted(wanted)
