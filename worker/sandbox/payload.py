"""What goes into a container over stdin, and the shell that receives it. Pure.

The first line is ``<size> <nonce>``; ``size`` bytes of tar follow. No half-close is needed, so
it works over TLS as well. The tar holds the caller's files, its stdin, and ``run``, a script
that defines the function ``program``. Nothing of the caller's is ever in an argument list, save
for the program's own, which the supervisor passes to ``exec`` inside the container.
"""

import io
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FOLDER = "tmp/.skillfleet"
MARK = b"\x04"

SUPERVISOR = f"""\
trap : TERM
read -r size nonce || exit 125
head -c "$size" | tar -xf - -C / 2>/dev/null ||
  {{ printf '\\004%s\\004unpack\\n' "$nonce"; exit 125; }}
exec </dev/null 3>&1 4>&2 2>/dev/null
. /{FOLDER}/run
said=$(trap : TERM; program 2>&1; exit $?)
code=$?
kill -s KILL -- -1
kills=0
for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
  [ -r "$file" ] || continue
  while read -r key value; do [ "$key" != oom_kill ] || kills=$value; done <"$file"
done
printf '\\004%s\\004' "$nonce" >&4
printf '\\004%s\\004exit %s %s %s\\n' "$nonce" "$code" "$kills" "${{said:+signal}}"
for name do
  if [ -f "./$name" ] && [ -r "./$name" ]; then
    size=$(($(wc -c <"./$name")))
    if [ "$size" -gt "$limit" ]; then
      printf 'large %s\\n' "$size"
    else
      limit=$((limit - size))
      printf 'file %s\\n' "$size"
      cat "./$name"
    fi
  elif [ -e "./$name" ]; then
    printf 'unreadable 0\\n'
  else
    printf 'missing 0\\n'
  fi
done
printf 'end\\n'
exit "$code"
"""
"""Runs below the container's init. It outlives SIGTERM, so that the ending still comes in-band.

A shell says something ("Killed") when its child dies of a signal and nothing when the child exits
with 128 + n; ``said`` tells the two apart. After the program only built-ins run until the marker
is out, and everything the program left behind is dead before that, so nothing mixes with it.
"""

ENTRYPOINT = ("sh", "-c", SUPERVISOR, "sandbox")


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """One program with all it needs; ``output_limit`` bounds the returned files (bytes, all)."""

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    output_files: Sequence[str] = ()
    output_limit: int = 0


def encode(payload: Payload, nonce: str, *, mtime: float) -> bytes:
    """Return the bytes for the container's stdin; ``mtime`` (Unix seconds) dates the files."""
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer,
        mode="w",
        format=tarfile.GNU_FORMAT,
        encoding="utf-8",
        errors="surrogatepass",
    ) as tar:
        add(tar, f"{FOLDER}/run", script(payload), mtime)
        if payload.stdin is not None:
            add(tar, f"{FOLDER}/stdin", payload.stdin, mtime)
        for name, content in payload.files.items():
            add(tar, f"workspace/{name}", content, mtime)
    archive = buffer.getvalue()
    return f"{len(archive)} {nonce}\n".encode() + archive


def add(tar: tarfile.TarFile, name: str, content: bytes, mtime: float) -> None:
    """Put one regular file into the archive."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    info.mtime = int(mtime)
    tar.addfile(info, io.BytesIO(content))


def script(payload: Payload) -> bytes:
    """Write ``run``: the function that becomes the program, and the files wanted afterwards."""
    source = f"/{FOLDER}/stdin" if payload.stdin is not None else "/dev/null"
    words = list(payload.command)
    if payload.env:
        words = ["env", *(f"{name}={value}" for name, value in payload.env.items()), *words]
    quoted = " ".join(map(shlex.quote, words))
    wanted = " ".join(map(shlex.quote, payload.output_files))
    text = (
        "program() { (\n"
        f"exec <{source} 1>&3 2>&4 3>&- 4>&-\n"
        f"rm -rf /{FOLDER}\n"
        "unset TINI_KILL_PROCESS_GROUP\n"
        f"exec {quoted}\n"
        ") }\n"
        f"limit={payload.output_limit}\n"
        f"set -- {wanted}\n"
    )
    return text.encode("utf-8", "surrogatepass")
