"""The dispatcher: takes requests, keeps them safe, waits for their end.

As a library: ``Dispatcher`` works in your process with its own pools, ``Client`` and ``SyncClient``
speak to a running one over HTTP.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dispatcher.client import Client
    from dispatcher.dispatcher import Dispatcher
    from dispatcher.sync import SyncClient

__all__ = ["Client", "Dispatcher", "SyncClient"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: a client needs no database driver, the command line neither.
    if name == "Dispatcher":
        from dispatcher.dispatcher import Dispatcher

        return Dispatcher
    if name == "Client":
        from dispatcher.client import Client

        return Client
    if name == "SyncClient":
        from dispatcher.sync import SyncClient

        return SyncClient
    raise AttributeError(f"module 'dispatcher' has no attribute {name!r}")
