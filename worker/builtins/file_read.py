"""Read a file of the workspace, as text or as base64."""

import base64
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from shared.errors import ErrorCode, ExecutionFailed
from worker.context import Context
from worker.handlers import handler

Encoding = Literal["utf8", "base64"]


class FileRead(BaseModel):
    """What to read."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    path: str = Field(description="Path within the workspace, such as notes/today.md")
    encoding: Encoding = Field(
        default="utf8", description="utf8 for text, base64 for anything else"
    )


class FileContent(BaseModel):
    """What was read; ``bytes_read`` counts the file's bytes, whatever the encoding."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    success: bool = True
    path: str
    content: str
    bytes_read: int
    encoding: Encoding


@handler("file_read", builtin=True, idempotent=True, description=__doc__, tags=("file", "read"))
async def file_read(input: FileRead, context: Context) -> FileContent:
    """Read a file of the workspace."""
    file = await context.workspace.read(input.path)
    return FileContent(
        path=file.path,
        content=encode(file.content, input.encoding, file.path),
        bytes_read=len(file.content),
        encoding=input.encoding,
    )


def encode(content: bytes, encoding: Encoding, path: str) -> str:
    """Turn bytes into a text of the asked encoding; refuse what is no text as ``utf8``."""
    if encoding == "base64":
        return base64.b64encode(content).decode("ascii")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # no text, and a character that jsonb can't hold
        raise ExecutionFailed(
            f"File is not UTF-8 text: {path}. Read it with encoding base64",
            code=ErrorCode.INVALID_INPUT,
        )
    return text
