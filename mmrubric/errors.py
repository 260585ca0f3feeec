"""Errors that a user can act on."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: the message names the file, field or value and says what to do. The CLI exits with 2."""


class RunError(RuntimeError):
    """Work that started and could not go on, such as a judge failing too often. The CLI exits with 1."""
