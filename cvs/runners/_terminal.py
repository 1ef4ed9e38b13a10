"""What nodes say, made fit for the user's terminal."""

from __future__ import annotations

from cvs.config.terminal import printable

__all__ = ["printable"]
