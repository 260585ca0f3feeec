"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """A text file (UTF-8) that takes the place of `path` at the end; after an error, a full disk or a kill the old
    file is whole."""
    with _replacing(path, mode="w", encoding="utf-8", newline="\n") as file:
        yield file


@contextmanager
def _replacing(path: Path, **how: Any) -> Iterator[IO[Any]]:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, **how) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; give the mode that a plain open() would have given.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with replacing(path) as file:
        file.write(text)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a binary file whole or not at all."""
    with _replacing(path, mode="wb") as file:
        file.write(data)
