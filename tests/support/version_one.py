"""Tables and runs as schema version 1 had them, spelled out: what it was is not today's to say."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.manifest import Manifest, input_hashes
from pipeline.store.run import Run
from stages.tables.parquet import Part, TableRef, write_bytes

_NAMED = pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())]))
_IDS, _LOGPROBS = pa.list_(pa.int32()), pa.list_(pa.float32())
_TYPES: dict[str, pa.DataType] = {
    "i": pa.int32(),
    "l": pa.int64(),
    "s": pa.string(),
    "f": pa.float64(),
    "b": pa.bool_(),
}
_TYPES |= {"ids": _IDS, "logprobs": _LOGPROBS, "named": _NAMED}


def _schema(text: str) -> pa.Schema:
    """Lines of `type: columns`."""
    fields = []
    for line in text.strip().splitlines():
        kind, _, names = line.strip().partition(": ")
        fields += [(name, _TYPES[kind]) for name in names.split()]
    return pa.schema(fields)


_IDENTITY = """
    i: iteration
    s: split task_id group_id
    i: sample
    s: episode_id
"""
VERSION_1 = {
    "tasks": _schema("s: task_id split source inputs gold row_hash"),
    "turns": _schema(
        _IDENTITY
        + """
    i: turn_index
    s: step
    i: round
    s: branch
    ids: parents
    s: event act role model_id base_id
    i: policy_version
    s: team_version
    b: trainable
    ids: prompt_token_ids response_token_ids
    logprobs: behaviour_logprobs
    s: logprobs_mode sampling
    i: num_prompt_tokens num_cached_tokens
    s: context_hash messages response_text parsed
    b: format_valid
    s: cut status status_detail finish_reason
    named: metrics
    s: tool tool_request tool_result
    i: attempts
    f: queued_at started_at first_token_at ended_at
    s: origin base_episode_id
    i: replay_from_turn
    """
    ),
    "episodes": _schema(
        _IDENTITY
        + """
    s: status error stop_reason
    i: num_turns
    l: num_prompt_tokens num_response_tokens
    f: started_at seconds
    """
    ),
    "rewards": _schema("s: episode_id\ni: turn_index\nf: reward\nnamed: reward_parts\ns: no_reward_reason"),
    "credit": _schema("s: episode_id\ni: turn_index\nf: return advantage\ns: excluded\nnamed: channels"),
    "partition": _schema(
        """
    s: episode_id
    i: turn_index
    s: group_id model_id role step
    i: policy_version rank mini_batch micro_batch
    ids: prompt_token_ids response_token_ids
    logprobs: behaviour_logprobs
    f: temperature return advantage
    """
    ),
    "updates": _schema(
        """
    i: iteration
    s: model_id kind
    i: step version_before version_after
    f: loss policy_loss kl_old clip_fraction entropy importance_ratio_max sampler_gap_mean sampler_gap_max
    f: sampler_kl gradient_norm learning_rate
    l: num_rows num_tokens num_forward_tokens
    f: seconds
    s: skipped
    """
    ),
    "models": _schema("i: iteration\ns: model_id base_id adapter\ni: version parent_version\ns: uri hash"),
}


def as_version_1(table: pa.Table, name: str) -> pa.Table:
    """Rows of today's table as version 1 wrote them."""
    schema = VERSION_1[name.partition("/")[0]]
    if name == "turns":
        cut = [
            None if text is None else json.dumps({k: v["items"] for k, v in json.loads(text).items()})
            for text in table["cut"].to_pylist()
        ]
        table = table.set_column(table.column_names.index("cut"), "cut", pa.array(cut, pa.string()))
    return table.select(schema.names).cast(schema)


def written(folder: str, part: Part, table: pa.Table) -> Part:
    """Write a part in place of the one of its name."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    data = buffer.getvalue()
    write_bytes(f"{folder}/{part.name}", data)
    return Part(part.name, part.rows, len(data), hashlib.blake2b(data, digest_size=16).hexdigest())


def make_version_1(run: Run) -> None:
    """Write all iterations of a run on this disk anew, as if a Cadre of schema version 1 had made it."""
    for index in run.iterations():
        place = run.iteration(index)
        old: dict[str, TableRef] = {}
        for name, ref in place.tables()[0].items():
            parts = [
                written(ref.folder, part, as_version_1(ref.read_part(k), name))
                for k, part in enumerate(ref.parts)
            ]
            old[name] = replace(ref, parts=tuple(parts), version=1)
        for file in Path(place.folder.path).rglob("manifest.json"):
            manifest = Manifest.from_json(file.read_text(), str(file))
            manifest.schema_version = 1
            manifest.tables = {name: list(old[name].parts) for name in manifest.tables}
            manifest.inputs = input_hashes({name: old[name] for name in manifest.inputs})
            file.write_text(manifest.to_json())
