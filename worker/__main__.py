"""``python -m worker``: one worker process, set up by the environment."""

import sys

import uvloop

from shared.errors import SkillfleetError
from shared.logging import configure
from shared.settings import load
from worker.main import main


def run() -> int:
    """Run a worker; return the exit status: 0 after a signal, 2 wrong set-up, 4 a part is away."""
    try:
        settings = load()
        configure(settings, "worker")
        uvloop.run(main(settings))
    except SkillfleetError as error:
        sys.stderr.write(f"skillfleet worker: {error.message}\n")
        return 4 if error.retryable else 2
    return 0


if __name__ == "__main__":
    sys.exit(run())
