"""The README's examples, run to the letter against a fleet of `skillfleet up`."""

import json
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.dispatcher.cli.command import environment, skillfleet_in_background
from tests.signals import until

README = (Path(__file__).parents[2] / "README.md").read_text()
ADDRESS = "localhost:20128"
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
FORMS = {
    "…": ".*",
    r"\n *": r"\s*",
    r"\d{4}-\d\d-\d\dT[0-9.:]+Z": r"[0-9T.:-]+Z",
    r'"durationMs":\d+': r'"durationMs":\d+',
    UUID: f"({UUID})",
}
"""What stands for something else in an answer that is shown, and the form it has in a real one."""
FORM = re.compile("|".join(f"({shown})" for shown in FORMS))
DONE_S = 60


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a console block, and the answer shown below it."""

    command: str
    answer: str


@dataclass(frozen=True, slots=True)
class Site:
    """A running fleet of the folder that it was started in."""

    folder: Path
    credentials: dict[str, str]

    def run(self, *command: str, text: str, **variables: str) -> str:
        """Run an example, with this fleet's address in it; return what it prints."""
        done = subprocess.run(
            command,
            input=text.replace(ADDRESS, self.credentials["url"].removeprefix("http://")),
            cwd=self.folder,
            env=environment({"PYTHONPATH": str(Path(__file__).parents[2]), **variables}),
            capture_output=True,
            text=True,
            timeout=DONE_S,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
async def site(tmp_path: Path, docker: None) -> AsyncIterator[Site]:
    """Start `up` as the README does, on a free port, with its module of handlers."""
    (tmp_path / "my_skills.py").write_text(blocks("A skill in one file", "python")[0])
    data_dir, output = tmp_path / ".skillfleet", tmp_path / "up.out"
    process = skillfleet_in_background(
        *("up", "--port", "0", "--data-dir", str(data_dir)),
        output=output,
        env={"SKILLS_HANDLER_MODULES": "my_skills", "PYTHONPATH": str(tmp_path)},
    )

    async def ready() -> bool:
        assert process.poll() is None, output.read_text()
        return "Ctrl-C stops everything" in output.read_text()

    try:
        await until(ready, f"`up` is ready: {output}", deadline_s=90)
        yield Site(tmp_path, json.loads((data_dir / "credentials.json").read_text()))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(DONE_S)


def blocks(section: str, language: str) -> list[str]:
    """Return the code blocks of a section."""
    text = README.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found, section
    return found


def steps(block: str) -> Iterator[Step]:
    """Yield the commands: what follows ``$``, with the lines that are indented by four."""
    for part in block.removeprefix("$ ").split("\n$ "):
        command, *rest = part.strip().splitlines()
        while rest and rest[0].startswith("    "):
            command += "\n" + rest.pop(0)
        yield Step(command, "\n".join(rest))


def pattern(answer: str) -> str:
    """Return what a real answer must match to be the one that is shown."""
    forms, made, at = list(FORMS.values()), "", 0
    for found in FORM.finditer(answer):
        made += re.escape(answer[at : found.start()]) + forms[(found.lastindex or 1) - 1]
        at = found.end()
    return made + re.escape(answer[at:])


@pytest.mark.timeout(300)
async def test_the_readmes_commands_answer_what_it_shows_and_its_python_runs(site: Site) -> None:
    setup, *session = blocks("A session with curl", "console")
    aliased = "shopt -s expand_aliases\n" + "\n".join(step.command for step in steps(setup))
    real: dict[str, str] = {}
    for step in (step for block in session for step in steps(block)):
        command = re.sub(UUID, lambda shown: real[shown[0]], step.command)
        answer = site.run("bash", text=f"{aliased}\n{command}\n")
        match = re.fullmatch(pattern(step.answer), answer, re.DOTALL)
        assert match, f"{step.command}\nanswered\n{answer}\nbut the README shows\n{step.answer}"
        real.update(zip(re.findall(UUID, step.answer), match.groups(), strict=True))
    over_http, in_process = blocks("From Python", "python")
    token = f"token = {site.credentials['managementToken']!r}\n"
    printed = site.run(sys.executable, "-", text=asynchronous(token + over_http))
    shown = re.search(r"print\(.*# (.*)", over_http)
    assert shown
    assert re.fullmatch(pattern(shown[1]), printed.strip()), printed
    addresses = {
        "SKILLS_DATABASE_URL": site.credentials["databaseUrl"],
        "SKILLS_REDIS_URL": site.credentials["redisUrl"],
    }
    report = "print(execution.status)"
    told = site.run(sys.executable, "-", text=asynchronous(f"{in_process}\n{report}"), **addresses)
    assert told.splitlines()[-1] == "success"


async def test_the_readmes_handler_runs_as_a_skill(site: Site) -> None:
    example = """
        from dispatcher import SyncClient
        with SyncClient("http://localhost:20128", token) as client:
            client.install(name="words", handler_code="count-words")
            print(client.submit("words", {"text": "one two three"}).output)
    """
    token = f"token = {site.credentials['managementToken']!r}\n"
    printed = site.run(sys.executable, "-", text=token + textwrap.dedent(example))
    assert printed == "{'words': 3, 'success': True}\n"


def asynchronous(example: str) -> str:
    """Wrap what stands at an asynchronous prompt into a program."""
    body = textwrap.indent(example, "    ")
    return f"import asyncio\nasync def main():\n{body}\nasyncio.run(main())\n"
