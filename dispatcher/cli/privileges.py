"""What a child process does between fork and exec, on Linux: die with its parent, drop root.

Postgres refuses to run as root. Instead of adding a system user and opening the folders above the
data to everybody, the child becomes ``nobody`` and keeps the one capability that lets it reach
files inside folders that only root may enter (a clone under ``/root``, ``mktemp -d``).
"""

import ctypes
import os
import pwd
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

# <linux/prctl.h>, <linux/capability.h>, <linux/securebits.h>
PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_SET_SECUREBITS = 28
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_OVERRIDE = 1
CAPABILITY_VERSION_3 = 0x20080522
SECBIT_NO_SETUID_FIXUP = 1 << 2

UNPRIVILEGED = "nobody"


class Header(ctypes.Structure):
    """``struct __user_cap_header_struct``."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class Data(ctypes.Structure):
    """``struct __user_cap_data_struct``; the call takes two."""

    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@dataclass(frozen=True, slots=True)
class Account:
    """Who a child runs as."""

    uid: int
    gid: int


def unprivileged() -> Account | None:
    """Return the account to run Postgres as; None when this process is not root."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam(UNPRIVILEGED)
    return Account(entry.pw_uid, entry.pw_gid)


def before_exec(death_signal: signal.Signals, account: Account | None) -> Callable[[], None]:
    """Return the function for Popen's ``preexec_fn``; it must be called in the main thread.

    ``death_signal`` reaches the child when its parent dies, however it dies. Elsewhere than on
    Linux only the account changes.
    """
    linux = sys.platform == "linux"
    libc = ctypes.CDLL(None, use_errno=True) if linux else None
    parent = os.getpid()

    def prepare() -> None:
        if account is not None:
            become(account, libc)
        if libc is not None:
            # after the change of user, which clears it
            libc.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
            if os.getppid() != parent:  # it died before we asked to be told
                os._exit(1)

    return prepare


def become(account: Account, libc: ctypes.CDLL | None) -> None:
    """Change to the account for good, keeping only the right to reach files."""
    if libc is not None:
        libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
        # or access(2), by which Postgres looks for its programs, would not count capabilities
        libc.prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    os.setgroups([])
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    if libc is not None:
        # where root itself lacks the capability these fail, and paths open to all still work
        bit = 1 << CAP_DAC_OVERRIDE
        libc.capset(ctypes.byref(Header(CAPABILITY_VERSION_3, 0)), (Data * 2)(Data(bit, bit, bit)))
        libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0)
