"""A program that speaks for its supervisor says only what a supervisor could have said."""

import pytest

from worker.sandbox.output import parse

FORGED = [
    b"exit 256 0\nend\n",
    b"exit 99999999999999999999 0\nend\n",
    b"exit 007 0\nend\n",
    b"exit -1 0\nend\n",
    b"exit 1e3 0\nend\n",
    "exit ٣ 0\nend\n".encode(),
]


@pytest.mark.parametrize("trailer", FORGED)
def test_an_exit_code_that_no_program_has_is_no_ending(trailer: bytes) -> None:
    assert parse(trailer) is None


@pytest.mark.parametrize("code", [0, 1, 125, 137, 255])
def test_every_exit_code_that_a_program_may_have_is_one(code: int) -> None:
    ending = parse(b"exit %d 0\nend\n" % code)
    assert ending is not None
    assert ending.code == code
