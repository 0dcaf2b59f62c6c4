"""Every exception and warning of helion_rt.

An error about a kernel names the kernel, the user's file and line (the source line is shown where it can be read), what
is wrong, and what to do about it (``hint``). All of that is in ``str(error)``; the parts are attributes too.
"""

from __future__ import annotations

import linecache


class HelionError(Exception):
    """Base of every error that helion_rt raises on purpose.

    ``message`` says what is wrong and what was expected; ``kernel``, ``file``, ``line`` (1-based) say where; ``hint``
    says what to do.
    """

    def __init__(
        self,
        message: str,
        *,
        kernel: str | None = None,
        file: str | None = None,
        line: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kernel = kernel
        self.file = file
        self.line = line
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.message]
        where = _place(self.kernel, self.file, self.line)
        if where:
            parts.append(f"  {where}")
        source = source_line(self.file, self.line)
        if source:
            parts.append(f"    {source}")
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return "\n".join(parts)


class CaptureError(HelionError):
    """A kernel cannot be turned into a program."""


class Unsupported(CaptureError):
    """The kernel uses a construct that helion_rt does not support."""


class SourceUnavailable(CaptureError):
    """The source text of a kernel, or of a helper it calls, cannot be had."""


class ShapeMismatch(CaptureError):
    """Shapes inside a kernel do not go together."""


class DTypeError(CaptureError):
    """A dtype is not supported where a kernel uses it."""


class ValueNeeded(CaptureError):
    """Python code of a kernel reads values of its arguments, and in this call there are none (shapes alone, or a JAX trace)."""


class ConfigError(HelionError, ValueError):
    """A Config, a setting or an environment variable has a name or a value that is not allowed."""


class PlanError(HelionError):
    """A config is illegal for a program on a target, or does not fit. ``reason`` is the one-line cause."""

    def __init__(
        self,
        reason: str,
        *,
        kernel: str | None = None,
        file: str | None = None,
        line: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(reason, kernel=kernel, file=file, line=line, hint=hint)
        self.reason = reason


class EmptyTensor(PlanError):
    """A tensor with no elements is read by a tile loop: no config has a plan, and the reference path is quick."""


class CompileError(HelionError):
    """The target's compiler refused. ``reason`` is its own first meaningful line, ``full_text`` all it said."""

    def __init__(
        self,
        reason: str,
        *,
        target: str | None = None,
        full_text: str = "",
        kernel: str | None = None,
        file: str | None = None,
        line: int | None = None,
        hint: str | None = None,
    ) -> None:
        message = f"does not compile for {target}: {reason}" if target else reason
        super().__init__(message, kernel=kernel, file=file, line=line, hint=hint)
        self.reason = reason
        self.target = target
        self.full_text = full_text or reason


class InputError(HelionError, ValueError):
    """The arguments of a call cannot be taken: wrong number, kind, dtype, device or value."""


class DifferentiationError(HelionError, TypeError):
    """A gradient is asked for that a kernel does not have, or its ``backward=`` does not give what it should."""


class TargetError(HelionError, ValueError):
    """A target does not exist, or the device in use is not one."""


class HelionRtWarning(UserWarning):
    """Category of every warning that helion_rt gives."""


class BaseWarning(HelionRtWarning):
    """Helion's name for the warnings about a kernel; its subclasses are what ``ignore_warnings=`` takes."""


class TensorOperationInWrapper(BaseWarning):
    """A tensor operation outside of the tile loops: it is not fused into the kernel (the name is Helion's)."""


class NoGradient(BaseWarning):
    """A torch tensor that requires grad goes into a kernel without ``backward=``: its outputs carry no gradient."""


def source_line(file: str | None, line: int | None) -> str:
    """Line ``line`` (1-based) of ``file``, stripped; empty if it cannot be read. Notebook cells work."""
    if not file or not line:
        return ""
    return linecache.getline(file, line).strip()


def _place(kernel: str | None, file: str | None, line: int | None) -> str:
    place = f"{file}:{line}" if file and line else (file or "")
    if kernel:
        return f"in kernel '{kernel}'" + (f", {place}" if place else "")
    return f"at {place}" if place else ""
