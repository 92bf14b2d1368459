from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.sandbox.output import Capture, Ending, OutputFile, Reply, parse

NONCE = "0123456789abcdef0123456789abcdef"
MARKER = b"\x04" + NONCE.encode() + b"\x04"
TRAILER = b"exit 0 0 \nend\n"


def captured(*chunks: bytes, cap: int = 100_000) -> Capture:
    capture = Capture(cap)
    for chunk in chunks:
        capture.feed(chunk)
    capture.feed(b"", final=True)
    return capture


def test_a_text_of_exactly_the_cap_is_not_truncated() -> None:
    exact = captured(b"x" * 100_000)
    assert (len(exact.text), exact.truncated, exact.dropped) == (100_000, False, 0)


def test_one_character_more_is_truncated_by_one() -> None:
    more = captured(b"x" * 100_001)
    assert (len(more.text), more.truncated, more.dropped) == (100_000, True, 1)


def test_a_wide_character_on_the_border_is_kept_whole_or_not_at_all() -> None:
    assert captured("aé😀".encode(), cap=3).text == "aé😀"
    assert captured("aé😀".encode(), cap=2).text == "aé"


def test_a_character_that_comes_byte_by_byte_is_one_character() -> None:
    assert captured(*(bytes([byte]) for byte in "😀".encode())).text == "😀"


def test_what_is_not_utf_8_becomes_replacement_characters() -> None:
    assert captured(b"\xff\xfe\x80a").text == "\ufffd\ufffd\ufffda"
    assert captured(b"a\xf0\x9f").text == "a\ufffd", "an unfinished one at the end"


def test_beyond_the_cap_bytes_are_counted_and_not_kept() -> None:
    flood = captured(b"x" * 10, *[b"y" * 1000] * 5, cap=10)
    assert (flood.text, flood.dropped) == ("x" * 10, 5000)


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=8))
def test_chunks_of_any_size_give_the_same_text(data: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[a:b] for a, b in pairwise(edges)]
    assert captured(*chunks).text == data.decode("utf-8", "replace")


@given(
    out=st.binary(max_size=100),
    file=st.binary(max_size=100),
    step=st.integers(1, 70),
)
def test_the_marker_ends_each_stream_however_it_is_cut(out: bytes, file: bytes, step: int) -> None:
    reply = Reply(NONCE, cap=1000, files=1, files_bytes=100)
    trailer = b"exit 3 1 signal\nfile %d\n%send\n" % (len(file), file)
    whole = out + MARKER + trailer
    for start in range(0, len(whole), step):
        assert reply.ending is None
        reply.feed(1, whole[start : start + step])
    assert reply.ending is None, "stderr has not ended yet"
    reply.feed(2, b"err" + MARKER)
    assert reply.ending == Ending(3, 1, True, (OutputFile("file", file, len(file)),))
    assert reply.stdout.text == out.decode("utf-8", "replace")
    assert reply.stderr.text == "err"


def test_partial_output_is_there_before_the_ending() -> None:
    reply = Reply(NONCE, cap=1000)
    reply.feed(1, b"so far")
    assert reply.stdout.text == "so far"


def test_half_a_marker_at_the_end_belongs_to_the_program() -> None:
    reply = Reply(NONCE, cap=1000)
    reply.feed(1, b"x" + MARKER[:20])
    reply.close()
    assert reply.ending is None
    assert reply.stdout.text == "x" + MARKER[:20].decode()


def test_a_marker_with_another_nonce_is_output() -> None:
    reply = Reply(NONCE, cap=1000)
    forged = b"\x04" + b"f" * 32 + b"\x04" + TRAILER
    reply.feed(1, forged)
    reply.feed(2, forged)
    reply.close()
    assert reply.ending is None
    assert reply.stdout.text == forged.decode()


def test_a_trailer_beyond_its_bound_is_not_kept() -> None:
    reply = Reply(NONCE, cap=10, files=1, files_bytes=100)
    reply.feed(1, MARKER + b"exit 0 0 \nfile 999999\n" + b"x" * 999_999)
    reply.feed(2, MARKER)
    reply.close()
    assert reply.ending is None
    assert reply.dropped == 0


@pytest.mark.parametrize(
    "trailer",
    [
        b"",
        b"exit 0 0",
        b"exit 0 0 \n",
        b"exit 0 0 \nfile 5\nabc",
        b"exit 0 0 \nfile 3\nabc",
        b"exit x 0 \nend\n",
        b"noise\nexit 0 0 \nend\n",
        b"exit 0 0 \nodd 3\nend\n",
        b"exit\nend\n",
    ],
)
def test_an_incomplete_or_odd_trailer_is_no_ending(trailer: bytes) -> None:
    assert parse(trailer) is None


def test_a_trailer_tells_of_files_that_are_not_there() -> None:
    found = parse(b"exit 0 0 \nmissing 0\nlarge 700\nunreadable 0\nfile 0\nend\n")
    assert found is not None
    assert [(file.found, file.size) for file in found.files] == [
        ("missing", 0),
        ("large", 700),
        ("unreadable", 0),
        ("file", 0),
    ]


def test_a_failed_unpacking_is_an_ending_without_a_code() -> None:
    assert parse(b"unpack\n") == Ending(code=None)
