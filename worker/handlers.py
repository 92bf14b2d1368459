"""Handlers: how they are declared, and how a worker finds those it offers.

A handler is a function of ``(input, context)``, async or not. Annotate ``input`` with a pydantic
model to have it validated; without one it is the plain dict. It returns a model or a dict::

    @handler("reverse", idempotent=True)
    async def reverse(input: Text, context: Context) -> Reversed: ...

Nothing is registered at import: ``load`` looks for what the decorator marked in the built-ins, in
installed entry points of group ``skills.handlers``, and in the operator's modules.
"""

import importlib
import inspect
import pkgutil
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

import worker.builtins
from shared.errors import ConfigurationError
from shared.settings import Settings

ENTRY_POINTS = "skills.handlers"
MARK = "__skillfleet_handler__"

Call = Callable[[Any, Any], Any]
Queue = Literal["direct", "sandbox"]
Policy = Literal["auto", "manual", "hybrid"]
F = TypeVar("F", bound=Call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A named function with its defaults; a skill's own values win over them.

    ``idempotent`` may be a JSON Schema: inputs that match it may safely run twice.
    ``timeout_input`` names an input field (milliseconds) that sets the deadline of a call, up to
    ``max_timeout_ms``. With ``keeps_deadline`` the handler ends itself at the deadline in order
    to hand over partial output, and is only cut off some seconds later.
    """

    name: str
    call: Call
    input_model: type[BaseModel] | None = None
    output_model: type[BaseModel] | None = None
    description: str = ""
    queue: Queue = "direct"
    timeout_ms: int | Callable[[Settings], int] | None = None
    max_timeout_ms: int | None = None
    timeout_input: str | None = None
    keeps_deadline: bool = False
    max_retries: int | None = None
    idempotent: bool | Mapping[str, Any] = False
    retry_on_timeout: bool = False
    policy: Policy = "auto"
    tags: tuple[str, ...] = ()
    version: str = "1.0.0"
    builtin: bool = False


def handler(name: str, **defaults: Any) -> Callable[[F], F]:
    """Mark a function as the handler ``name``; keyword arguments are Handler's fields."""

    def mark(function: F) -> F:
        first, returned = models(function)
        described = defaults.pop("description", None) or inspect.getdoc(function) or ""
        value = Handler(
            name=name,
            call=function,
            input_model=first,
            output_model=returned,
            description=described,
            **defaults,
        )
        check(value)
        setattr(function, MARK, value)
        return function

    return mark


def check(value: Handler) -> None:
    """Raise ConfigurationError for a declaration that no worker could serve."""
    parameters = inspect.signature(value.call).parameters.values()
    if sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) < 2:
        raise ConfigurationError(f"Handler {value.name} must be a function of (input, context)")
    for name, kind in (("queue", Queue), ("policy", Policy)):
        known = typing.get_args(kind)
        if getattr(value, name) not in known:
            raise ConfigurationError(
                f"Handler {value.name}: {name} is {getattr(value, name)!r}, not one of {known}"
            )


def models(function: Call) -> tuple[type[BaseModel] | None, type[BaseModel] | None]:
    """Return the pydantic models of a handler's input and result; None where there is none."""
    hints = typing.get_type_hints(function)
    parameters = list(inspect.signature(function).parameters)
    first = hints.get(parameters[0]) if parameters else None
    return as_model(first), as_model(hints.get("return"))


def as_model(hint: object) -> type[BaseModel] | None:
    """Return the hint when it is a pydantic model."""
    return hint if isinstance(hint, type) and issubclass(hint, BaseModel) else None


def load(settings: Settings) -> dict[str, Handler]:
    """Import every source of handlers and return what they offer, by name.

    Raises ConfigurationError when a module can't be imported or two handlers share a name.
    """
    found: dict[str, Handler] = {}
    for info in pkgutil.iter_modules(worker.builtins.__path__):
        add(found, importlib.import_module(f"worker.builtins.{info.name}"))
    for point in entry_points(group=ENTRY_POINTS):
        add(found, imported(point.module))
    for name in settings.handler.modules:
        add(found, imported(name))
    return found


def imported(name: str) -> ModuleType:
    """Import an operator's module, also from the current folder; explain a failure."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ConfigurationError(
            f"Handler module {name} can't be imported: {type(error).__name__}: {error}. "
            "Check SKILLS_HANDLER_MODULES and PYTHONPATH"
        ) from error


def add(found: dict[str, Handler], module: ModuleType) -> None:
    """Collect a module's marked functions; a name taken by another function is an error."""
    for value in marked(vars(module).values()):
        known = found.setdefault(value.name, value)
        if known.call is not value.call:
            raise ConfigurationError(
                f"Two handlers are called {value.name}: in {known.call.__module__} "
                f"and {value.call.__module__}. Rename one"
            )


def marked(values: Iterable[object]) -> Iterable[Handler]:
    """Yield the Handler of each function that the decorator marked."""
    for value in values:
        found = getattr(value, MARK, None)
        if isinstance(found, Handler) and inspect.isfunction(value):
            yield found
