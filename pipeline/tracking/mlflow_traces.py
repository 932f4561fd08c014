"""Episodes as MLflow traces.

MLflow's fluent tracing is for what happens now: it takes the time from the clock, draws ids by chance
and writes in the background. Here everything is known, and the ids are hashes of run and episode, so
that an episode that is logged again replaces itself. What MLflow's own exporter calls is called here.
Formats are those of MLflow 3.17.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

from pipeline.tracking.spans import Span, Trace

PREVIEW: Final = 1000  # characters of request and response in the list of traces, MLflow's own limit
TAG: Final = 1000  # characters


def log_traces(uri: str, experiment_id: str, run_id: str, traces: Sequence[Trace]) -> None:
    """Write the traces, linked to the run. Repeats change nothing.

    Raises:
        NotImplementedError: the server is older than 3.4, which takes no spans.
    """
    from mlflow.tracing.client import TracingClient

    if not traces:
        return
    client = TracingClient(uri)
    client.log_spans(experiment_id, [span for trace in traces for span in _spans(trace, run_id)])
    for trace in traces:
        client.start_trace(_info(trace, experiment_id, run_id))


def trace_id(run_id: str, episode_id: str) -> str:
    """The id of an episode's trace in a run."""
    return f"tr-{_hash(16, run_id, episode_id).hex()}"


def _spans(trace: Trace, run_id: str) -> list[Any]:
    from mlflow.entities import Span as MlflowSpan

    return [MlflowSpan.from_dict(_span_dict(span, trace, run_id)) for span in trace.spans]


def _span_dict(span: Span, trace: Trace, run_id: str) -> dict[str, Any]:
    """A span as MLflow stores it: attributes are JSON texts."""
    values: dict[str, Any] = {
        **span.attributes,
        "mlflow.traceRequestId": trace_id(run_id, trace.episode_id),
        "mlflow.spanType": span.kind,
        "mlflow.spanInputs": span.inputs,
        "mlflow.spanOutputs": span.outputs,
    }
    if span.kind == "CHAT_MODEL":
        values["mlflow.message.format"] = "openai"  # a list of {role, content}, shown as a conversation
        values["mlflow.llm.model"] = span.model
    if span.tokens is not None:
        prompt, response = span.tokens
        values["mlflow.chat.tokenUsage"] = {
            "input_tokens": prompt,
            "output_tokens": response,
            "total_tokens": prompt + response,
        }
    return {
        "trace_id": _base64(_hash(16, run_id, trace.episode_id)),
        "span_id": _span_id(span.key, trace, run_id),
        "parent_span_id": _span_id(span.parent, trace, run_id) if span.parent else None,
        "name": span.name,
        "start_time_unix_nano": span.start,
        "end_time_unix_nano": span.end,
        "events": _events(span),
        "links": [
            {
                "trace_id": trace_id(run_id, trace.episode_id),
                "span_id": _hash(8, run_id, trace.episode_id, key).hex(),
                "attributes": {"kind": kind},
            }
            for key, kind in span.links
        ],
        "status": {
            "code": "STATUS_CODE_ERROR" if span.problem else "STATUS_CODE_OK",
            "message": span.problem or "",
        },
        "attributes": {
            name: json.dumps(value, ensure_ascii=False) for name, value in values.items() if value is not None
        },
    }


def _events(span: Span) -> list[dict[str, Any]]:
    """The moments of a span; a problem is an exception, because viewers mark spans that have one."""
    events: list[tuple[str, int, dict[str, str]]] = [(name, at, {}) for name, at in span.moments.items()]
    if span.problem is not None:
        kind = span.problem.partition(":")[0]
        events.append(("exception", span.end, {"exception.type": kind, "exception.message": span.problem}))
    return [{"name": name, "time_unix_nano": at, "attributes": said} for name, at, said in events]


def _info(trace: Trace, experiment_id: str, run_id: str) -> Any:
    from mlflow.entities import TraceInfo, TraceLocation, TraceState

    root = trace.spans[0]
    start, end = root.start // 1_000_000, root.end // 1_000_000
    used = [span.tokens for span in trace.spans if span.tokens is not None]
    prompt, response = sum(p for p, _ in used), sum(r for _, r in used)
    usage = {"input_tokens": prompt, "output_tokens": response, "total_tokens": prompt + response}
    return TraceInfo(
        trace_id=trace_id(run_id, trace.episode_id),
        trace_location=TraceLocation.from_experiment_id(experiment_id),
        request_time=start,
        execution_duration=end - start,
        state=TraceState.ERROR if root.problem else TraceState.OK,
        request_preview=_preview(root.inputs),
        response_preview=_preview(root.outputs),
        client_request_id=trace.episode_id,
        trace_metadata={"mlflow.sourceRun": run_id, "mlflow.trace.tokenUsage": json.dumps(usage)},
        tags={"mlflow.traceName": root.name} | {name: text[:TAG] for name, text in trace.tags.items()},
        assessments=_assessments(trace, run_id, end),
    )


def _assessments(trace: Trace, run_id: str, at: int) -> list[Any]:
    """Return and reward parts as feedback by code, gold as what was expected: columns of the trace list."""
    from mlflow.entities import AssessmentSource, Expectation, Feedback

    common: dict[str, Any] = {
        "source": AssessmentSource(source_type="CODE", source_id="cadre"),
        "trace_id": trace_id(run_id, trace.episode_id),
        "create_time_ms": at,
        "last_update_time_ms": at,
    }
    assessments: list[Any] = [
        Feedback(name=name, value=value, **common) for name, value in trace.values.items()
    ]
    if trace.gold is not None:
        assessments.append(Expectation(name="gold", value=trace.gold, **common))
    for assessment in assessments:
        digest = _hash(16, run_id, trace.episode_id, assessment.name).hex()
        assessment.assessment_id = f"a-{digest}"
    return assessments


def _preview(value: Any) -> str | None:
    """A value in one line: of a mapping with one value, that value."""
    if value is None:
        return None
    if isinstance(value, dict) and len(value) == 1:
        (value,) = value.values()
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= PREVIEW else f"{text[: PREVIEW - 1]}…"


def _span_id(key: str, trace: Trace, run_id: str) -> str:
    return _base64(_hash(8, run_id, trace.episode_id, key))


def _hash(size: int, *parts: str) -> bytes:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=size).digest()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
