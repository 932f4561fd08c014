"""Words for the end of a reply, of many APIs, by kind."""

from __future__ import annotations

import pytest

from stages.engines.openai.finish import kind_of

KINDS = {
    "stop": ["stop", "STOP", "eos", "end_turn", "stop_sequence", "COMPLETE", "tool_calls", "function_call",
             "tool_use", "MALFORMED_FUNCTION_CALL", None, "", "something_new"],
    "length": ["length", "max_tokens", "MAX_TOKENS", "model_length", "max_output_tokens", "max-length",
               "model_context_window_exceeded", "context_length_exceeded", "token_limit", "incomplete"],
    "content_filter": ["content_filter", "content-filter", "SAFETY", "RECITATION", "BLOCKLIST", "SPII",
                       "PROHIBITED_CONTENT", "refusal", "sensitive", "guardrail_intervened", "ERROR_TOXIC"],
    "failed": ["error", "abort", "aborted", "cancelled", "insufficient_system_resource", "ERROR",
               "engine_overloaded", "timeout", "network_error", "server_error"],
}  # fmt: skip


@pytest.mark.parametrize(("reason", "kind"), [(r, kind) for kind, rs in KINDS.items() for r in rs])
def test_the_reasons_of_many_apis_are_of_four_kinds(reason, kind):
    assert kind_of(reason) == kind
