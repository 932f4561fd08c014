"""Fixtures that several files of this room share."""

from tests.support.chat_api import api, api_key

__all__ = ["api", "api_key"]
