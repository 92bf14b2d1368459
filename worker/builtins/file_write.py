"""Write a file of the workspace in one step; folders on the way are made."""

import binascii

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from shared.errors import ErrorCode, ExecutionFailed
from worker.builtins.file_read import Encoding
from worker.context import Context
from worker.handlers import handler


class FileWrite(BaseModel):
    """What to write, and where."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    path: str = Field(description="Path within the workspace, such as notes/today.md")
    content: str = Field(description="The text, or base64 of the bytes")
    encoding: Encoding = Field(
        default="utf8", description="utf8 for text, base64 for anything else"
    )
    append: bool = Field(default=False, description="Add to the end of what is there")
    overwrite: bool = Field(
        default=True, description="Replace a file that is there; else it is an error"
    )


class FileWritten(BaseModel):
    """What was written; ``bytes_written`` counts this call's bytes, also when appending."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    success: bool = True
    path: str
    bytes_written: int


@handler(
    "file_write",
    builtin=True,
    idempotent={"properties": {"overwrite": {"const": True}, "append": {"const": False}}},
    description=__doc__,
    tags=("file", "write"),
)
async def file_write(input: FileWrite, context: Context) -> FileWritten:
    """Write a file of the workspace."""
    content = decode(input.content, input.encoding)
    path = await context.workspace.write(
        input.path, content, append=input.append, overwrite=input.overwrite
    )
    return FileWritten(path=path, bytes_written=len(content))


def decode(content: str, encoding: Encoding) -> bytes:
    """Turn the text that was sent into the bytes that it means."""
    try:
        if encoding == "base64":
            return binascii.a2b_base64(content, strict_mode=True)
        return content.encode()
    except UnicodeEncodeError:
        message = "The content holds a lone surrogate, which UTF-8 can't carry. Send it as base64"
    except (binascii.Error, ValueError) as error:
        message = f"The content is not base64: {error}. Use + and /, padding, and no line breaks"
    raise ExecutionFailed(message, code=ErrorCode.INVALID_INPUT)
