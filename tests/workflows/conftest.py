"""Fixtures that several files of this room share."""

from tests.support.retrieval_servers import facts_index, good_server, stub_server

__all__ = ["facts_index", "good_server", "stub_server"]
