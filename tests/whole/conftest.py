"""Fixtures that several files of this room share."""

from tests.support.chat_api import api

__all__ = ["api"]
