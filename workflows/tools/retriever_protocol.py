"""What a retriever is asked and answers, as a tool and over HTTP, in one place.

Over HTTP there are two forms of requests, and three shapes of replies:

| form      | request                                                  | reply                             |
|-----------|----------------------------------------------------------|-----------------------------------|
| questions | `{"questions": [str], "N": int}`                         | `[{"top_k_docs": [document]}, …]` |
| queries   | `{"queries": [str], "topk": int, "return_scores": bool}` | `{"result": [[document], …]}`     |

Scores are asked for: Search-R1's own server answers a request without them with an error. A server that
refuses a request for scores is asked without.

A reply to one query may also be `{"top_k_docs": [document]}`. A document is a text, or an object whose
text is called `text`, `contents`, `content` or `document`, the last also with an object inside and the
score beside it, as Search-R1's server has it. Here it becomes `{"id", "title", "text"}`, with a `score`
where there is one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from workflows.errors import ToolRefusal, WorkflowError

Form = Literal["questions", "queries", "queries_without_scores"]
FORMS: Final[tuple[Form, ...]] = ("questions", "queries", "queries_without_scores")
PATHS: Final = ("/retrieve", "/query", "/search")

DEFAULT_TOP_K: Final = 4
MAX_QUERY_CHARACTERS: Final = 10_000  # the rest of a runaway query is not read

TEXTS: Final = ("text", "contents", "content", "document")
IDS: Final = ("id", "_id", "doc_id", "docid", "passage_id")


class ProtocolError(ValueError):
    """A request or a reply that is none of the protocol's; says what was got."""


@dataclass(frozen=True, slots=True)
class Search:
    """What a request asks for."""

    queries: tuple[str, ...]
    top_k: int
    form: Form
    scores: bool = True


def query_of(request: Mapping[str, Any]) -> tuple[str, int]:
    """The query and the `top_k`, by default 4, that a retriever tool is asked with.

    Raises:
        ToolRefusal: the query is missing, not a text, or blank.
        WorkflowError: `top_k` is not a whole number of at least 1.
    """
    query, top_k = request.get("query"), request.get("top_k", DEFAULT_TOP_K)
    if not isinstance(query, str) or not query.strip():
        raise ToolRefusal(f"the retriever needs a query in words, got {query!r:.80}")
    return query, checked_top_k(top_k)


def checked_top_k(top_k: Any) -> int:
    """
    Raises:
        WorkflowError: `top_k` is not a whole number of at least 1.
    """
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
        raise WorkflowError(f"the retriever's top_k must be a whole number of at least 1, got {top_k!r}")
    return top_k


def encode_request(queries: Sequence[str], top_k: int, form: Form) -> dict[str, Any]:
    if form == "questions":
        return {"questions": list(queries), "N": top_k}
    return {"queries": list(queries), "topk": top_k, "return_scores": form == "queries"}


def decode_request(body: Any) -> Search:
    """
    Raises:
        ProtocolError: neither form, or a value of the wrong kind.
    """
    if not isinstance(body, dict) or not {"questions", "queries"} & body.keys():
        raise ProtocolError(
            f'expected {{"questions": [...], "N": k}} or {{"queries": [...], "topk": k}}, got {_shown(body)}'
        )
    form: Form = "questions" if "questions" in body else "queries"
    queries, limit = body[form], "N" if form == "questions" else "topk"
    top_k = body.get(limit, DEFAULT_TOP_K)
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise ProtocolError(f"{form} must be a list of texts, got {_shown(queries)}")
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
        raise ProtocolError(f"{limit} must be a whole number of at least 1, got {_shown(top_k)}")
    scores = body.get("return_scores", form == "questions")
    if not isinstance(scores, bool):
        raise ProtocolError(f"return_scores must be true or false, got {_shown(scores)}")
    return Search(tuple(queries), top_k, form, scores)


def encode_reply(found: Sequence[Sequence[Mapping[str, Any]]], search: Search) -> Any:
    if search.form == "questions":
        return [{"top_k_docs": list(documents)} for documents in found]
    if search.scores:
        return {"result": [[_beside_score(d) for d in documents] for documents in found]}
    return {"result": [[{k: d[k] for k in d if k != "score"} for d in documents] for documents in found]}


def decode_reply(body: Any, num_queries: int) -> list[list[dict[str, Any]]]:
    """The documents of each query, in the order of the queries.

    Raises:
        ProtocolError: another shape, or results for another number of queries.
    """
    if isinstance(body, dict) and "top_k_docs" in body:
        results: Any = [body["top_k_docs"]]
    elif isinstance(body, dict) and "result" in body:
        results = body["result"]
    elif isinstance(body, list) and all(isinstance(r, dict) and "top_k_docs" in r for r in body):
        results = [result["top_k_docs"] for result in body]
    else:
        raise ProtocolError(f"the reply is none of the known shapes: {_shown(body)}")
    if not isinstance(results, list) or not all(isinstance(documents, list) for documents in results):
        raise ProtocolError(f"the reply's results are no lists of documents: {_shown(results)}")
    if len(results) != num_queries:
        raise ProtocolError(f"the reply has results for {len(results)} queries, {num_queries} were asked")
    return [[document(d) for d in documents] for documents in results]


def document(raw: Any) -> dict[str, Any]:
    """One document in our form. Where a server gives no id, it is a hash of title and text.

    Raises:
        ProtocolError: it has no text.
    """
    if isinstance(raw, str):
        raw = {"text": raw}
    if not isinstance(raw, dict):
        raise ProtocolError(f"a document is neither a text nor an object: {_shown(raw)}")
    name = next((name for name in TEXTS if raw.get(name) is not None), None)
    if name is not None and isinstance(raw[name], dict):
        inner = document(raw[name])
        return inner if (score := _score(raw)) is None else {**inner, "score": score}
    if name is None or not isinstance(raw[name], str) or not raw[name].strip():
        raise ProtocolError(f"a document has no text: {_shown(raw)}")
    title, text = raw.get("title"), raw[name]
    if not isinstance(title, str):
        title, text = title_line(text)
    id = next((raw[key] for key in IDS if isinstance(raw.get(key), str | int)), None)
    if id is None or isinstance(id, bool):
        id = hashlib.blake2b(f"{title}\n{text}".encode("utf-8", "replace"), digest_size=8).hexdigest()
    found = {"id": str(id), "title": title, "text": text}
    return found if (score := _score(raw)) is None else {**found, "score": score}


def title_line(text: str) -> tuple[str, str]:
    """Search-R1's corpora put the title on a first line of its own, in quotation marks."""
    first, newline, rest = text.partition("\n")
    if newline and len(first) > 2 and first[0] == first[-1] == '"' and rest.strip():
        return first[1:-1], rest
    return "", text


def _score(raw: Mapping[str, Any]) -> float | None:
    score = raw.get("score")
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        return None
    return float(score)


def _beside_score(found: Mapping[str, Any]) -> dict[str, Any]:
    inner = {name: found[name] for name in found if name != "score"}
    return {"document": inner, "score": found.get("score")}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}…"
