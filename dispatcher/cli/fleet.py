"""The processes of `up`: started, watched, started again when one is lost, stopped in order."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from dispatcher.cli.children import Child, ChildFailed, room_environment, told

RESTARTS = 5
RESTART_WINDOW_S = 60.0
"""A room that ends more than RESTARTS times within this stops the fleet: restarting won't help."""
WORKER_EXTRA_S = 20.0
"""Beyond its grace period a worker needs time to cut off what still runs and to write it down."""
DISPATCHER_GRACE_S = 15.0
LOOK_S = 0.2


@dataclass(slots=True, kw_only=True)
class Fleet:
    """All that `up` started. ``backing`` are the embedded services, Valkey before Postgres."""

    console: Console
    data_dir: Path
    lock: int
    backing: tuple[Child, ...] = ()
    dispatchers: list[Child] = field(default_factory=list)
    workers: list[Child] = field(default_factory=list)

    def start_dispatcher(self, settings: Mapping[str, str]) -> None:
        """Start the dispatcher's process."""
        self.dispatchers.append(
            self.start("dispatcher", "dispatcher", settings, DISPATCHER_GRACE_S)
        )

    def start_workers(self, count: int, settings: Mapping[str, str], grace_s: float) -> None:
        """Start ``count`` workers; ``grace_s`` is how long each lets finish what it runs."""
        for number in range(1, count + 1):
            name = f"worker {number}"
            self.workers.append(self.start("worker", name, settings, grace_s + WORKER_EXTRA_S))

    def start(self, room: str, name: str, settings: Mapping[str, str], grace_s: float) -> Child:
        """Start one room as a process of its own."""
        child = Child(
            name=name,
            argv=[sys.executable, "-m", room],
            env=room_environment(settings),
            log=self.data_dir / "logs" / f"{name.replace(' ', '-')}.log",
            grace_s=grace_s,
            lock=self.lock,
        )
        child.start()
        return child

    def check(self) -> None:
        """Raise ChildFailed, with the end of its log, when any process has ended."""
        for child in (*self.backing, *self.dispatchers, *self.workers):
            child.check()

    def watch(self) -> None:
        """Keep the rooms running until a signal raises; raise ChildFailed when that is hopeless."""
        while True:
            for child in self.backing:
                self.need(child)
            for child in (*self.dispatchers, *self.workers):
                self.keep(child)
            time.sleep(LOOK_S)

    def need(self, child: Child) -> None:
        """Raise ChildFailed, saying how to go on, when a service has ended."""
        code = child.exit_code()
        if code is not None:
            raise ChildFailed(
                f"{child.name} ended with {told(code)}; nothing works without it, so all is "
                "stopped. Start `skillfleet up` again: data and credentials are kept, and what "
                f"was accepted goes on.\n{child.tail()}"
            )

    def keep(self, child: Child) -> None:
        """Start a room again that ended unasked; what it ran is taken over meanwhile."""
        code = child.exit_code()
        if code is None:
            return
        recent = [at for at in child.starts if at > time.monotonic() - RESTART_WINDOW_S]
        if len(recent) > RESTARTS:
            raise ChildFailed(
                f"{child.name} ended with {told(code)}, {len(recent)} times within a minute. "
                "All is stopped. Mend the cause, then start `skillfleet up` again: what was "
                f"accepted goes on.\n{child.tail()}"
            )
        self.console.print(
            f"{child.name} ended with {told(code)}. Starting it again; its log: {child.log}"
        )
        child.start()

    def stop(self) -> None:
        """Stop all of it: workers first, which finish what runs, then what they need to do so.

        A second Ctrl-C during that cuts off what runs, a third kills the rooms, whose containers
        then stay until the next `up`; the services always end in order.
        """
        rooms = (*self.workers, *self.dispatchers)
        try:
            try:
                self.stop_together(self.workers)
                self.stop_together(self.dispatchers)
            except KeyboardInterrupt:
                self.console.print("Not waiting any longer: what runs is cut off.")
                for child in rooms:
                    child.ask_to_stop()  # a worker takes the second signal for that
                for child in rooms:
                    if not child.wait(WORKER_EXTRA_S):
                        child.kill()
        except KeyboardInterrupt:
            for child in rooms:
                child.kill()
        for child in self.backing:
            self.insist(child)

    def stop_together(self, children: list[Child]) -> None:
        """Ask all, then wait for each."""
        for child in children:
            child.ask_to_stop()
        for child in children:
            if not child.stop():
                self.console.print(
                    f"{child.name} did not stop within {child.grace_s:.0f} s: killed."
                )

    def insist(self, child: Child) -> None:
        """Stop a service, whatever is pressed meanwhile."""
        try:
            child.stop()
        except KeyboardInterrupt:
            self.insist(child)
