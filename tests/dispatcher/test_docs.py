import re

from dispatcher.routing import PUBLIC
from shared.keys import SCOPES
from tests.dispatcher.fleet import Fleet


async def test_every_operation_of_the_document_says_its_scope_and_its_errors(
    fleet: Fleet,
) -> None:
    document = (await fleet.api.get("/openapi.json")).json()
    ids = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            ids.append(operation["operationId"])
            scope = operation["x-required-scope"]
            assert scope in (PUBLIC, *SCOPES), (method, path)
            assert ("security" in operation) == (scope != PUBLIC), (method, path)
            assert operation["description"], (method, path)
            for code, answer in operation["responses"].items():
                if code.isdecimal() and int(code) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"]
    assert len(set(ids)) == len(ids)


async def test_every_reference_of_the_document_leads_somewhere(fleet: Fleet) -> None:
    response = await fleet.api.get("/openapi.json")
    document = response.json()
    for reference in set(re.findall(r'"\$ref":"#/([^"]+)"', response.text)):
        found = document
        for step in reference.split("/"):
            found = found[step]
    assert "HTTPValidationError" not in response.text


async def test_the_page_shows_every_operation_and_loads_nothing_from_elsewhere(
    fleet: Fleet,
) -> None:
    page = await fleet.api.get("/docs")
    assert page.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    document = (await fleet.api.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"<b>{method.upper()}</b> {path}</h2>" in page.text
    loaded = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
    assert set(loaded) == {"/docs/style.css", "/openapi.json"}
    for target in set(re.findall(r'href="#([^"]+)"', page.text)):
        assert f'id="{target}"' in page.text
    style = await fleet.api.get("/docs/style.css")
    assert style.headers["Content-Type"].startswith("text/css")
    assert "url(" not in style.text
