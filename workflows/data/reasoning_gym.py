"""Tasks that reasoning-gym makes, and its own judgement of answers: https://pypi.org/project/reasoning-gym/.

`[data] path` names a family, how many tasks of each split, and the family's own settings:

    path = "chain_sum?train=600&dev=100&test=100&max_terms=3"

Item i of a family depends on its seed plus i, so neighbouring seeds make the same items. The seeds of splits
are a hundred million apart here, and a question that another split has already is left out.

Most families judge more than equality. Some do it by running the answer as Python: where that is a call of
`eval`, it reads literals only here; families that parse it with SymPy, which runs it, too, or that run code,
are refused.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import parse_qsl

from workflows.errors import UsageError, did_you_mean

SPLITS: Final = ("test", "dev", "train")  # in the order in which they take questions
SEEDS_APART: Final = 100_000_000
MOST: Final = 10_000  # items of a split: some families make all of theirs at once
SKIPPED_IN_A_ROW: Final = 1000  # repeated questions, before a family has no more
RUNS_CODE: Final = frozenset({"exec", "compile", "parse_expr", "sympify", "__import__"})


def tasks(path: str) -> Iterator[dict[str, Any]]:
    """The tasks that a path asks for; see above.

    Each has `question`, and in its gold `answers` and where the item is made from, for `score`.

    Raises:
        UsageError: the package is missing, there is no such family or setting, the family runs answers as
            code, or it has fewer different questions.
    """
    name, _, query = path.partition("?")
    asked = dict(parse_qsl(query, keep_blank_values=True))
    counts = {split: _count(path, split, asked.pop(split, "0")) for split in SPLITS}
    seed = _count(path, "seed", asked.pop("seed", "0"))
    if not any(counts.values()):
        raise UsageError(f"[data] path = {path!r} asks for no task; for example {name}?train=600&dev=100")
    if seed >= SEEDS_APART:
        raise UsageError(f"[data] path = {path!r}: seed is below {SEEDS_APART}, got {seed}")
    config = json.dumps(_config(name, asked), sort_keys=True)
    known: set[str] = set()
    for number, split in enumerate(SPLITS):
        yield from _of_split(path, name, config, split, counts[split], seed + number * SEEDS_APART, known)


def _of_split(
    path: str, name: str, config: str, split: str, count: int, seed: int, known: set[str]
) -> Iterator[dict[str, Any]]:
    index = skipped = made = 0
    while made < count:
        if index == MOST:
            raise UsageError(
                f"[data] path = {path!r}: {name} gave {made} questions for {split} in {MOST} items; "
                "ask for fewer"
            )
        item = item_of(name, config, seed, index)
        if item["question"] in known:
            skipped += 1
            if skipped >= SKIPPED_IN_A_ROW:
                raise UsageError(
                    f"[data] path = {path!r}: {name} has no {count} different questions for {split}; it "
                    f"made {made}, then {skipped} that are there already; ask for fewer or widen its settings"
                )
        else:
            known.add(item["question"])
            skipped, made = 0, made + 1
            yield {
                "task_id": f"{name}-{split}-{index}",
                "split": split,
                "source": f"reasoning_gym/{name}",
                "inputs": {"question": item["question"]},
                "gold": {
                    # some families take any answer that fits, and have none of their own
                    **({"answers": [str(item["answer"])]} if item["answer"] not in (None, "") else {}),
                    "question": _hash(item),
                    "family": name,
                    "config": config,
                    "seed": seed,
                    "index": index,
                },
            }
        index += 1


def item_of(name: str, config: str, seed: int, index: int) -> dict[str, Any]:
    """Item `index` of a family, as the package has it."""
    item: dict[str, Any] = family(name, config, seed)[index]
    return item


def score(gold: Mapping[str, Any], answer: str) -> float:
    """What the family itself says that an answer is worth, mostly 0 to 1.

    Raises:
        UsageError: the package is missing, or the family runs answers as code.
        ValueError: the package makes another item today than when the task was made, or reached no verdict.
    """
    name, config, seed, index = (gold[key] for key in ("family", "config", "seed", "index"))
    item = item_of(name, config, seed, index)
    if _hash(item) != gold["question"]:
        raise ValueError(
            f"item {index} of {name} has another question today than when the task was made; install the "
            "version of reasoning-gym that made it"
        )
    judge = family(name, config, seed)
    with _literal_eval(sys.modules[type(judge).__module__], item):
        try:
            return float(judge.score_answer(answer, item))
        except Exception as error:
            # a judge that stumbles over this answer alone could not read it
            if isinstance(item["answer"], str) and _judges(judge, item):
                return 0.0
            raise ValueError(
                f"family {name!r} reached no verdict: {type(error).__name__}: {error}"
            ) from error


def _judges(judge: Any, item: Mapping[str, Any]) -> bool:
    try:
        return float(judge.score_answer(item["answer"], item)) > 0
    except Exception:
        return False


def _hash(item: Mapping[str, Any]) -> str:
    return blake2b(str(item["question"]).encode(), digest_size=8).hexdigest()


@functools.lru_cache(maxsize=64)
def family(name: str, config: str, seed: int) -> Any:
    """A family with its settings and seed."""
    made_by, its_settings = _known(name)
    settings = {key: tuple(v) if isinstance(v, list) else v for key, v in json.loads(config).items()}
    try:
        return made_by(config=its_settings(**settings, seed=seed, size=MOST))
    except (AssertionError, TypeError, ValueError) as error:
        raise UsageError(f"family {name!r} of reasoning-gym can't have these settings: {error}") from error


def check_ready() -> None:
    """Import the package.

    Raises:
        UsageError: it is missing.
    """
    try:
        import reasoning_gym
    except ImportError as error:
        raise UsageError(
            f"these tasks are made and judged by the package reasoning-gym, which can't be imported "
            f"({error}); pip install reasoning-gym"
        ) from None
    assert reasoning_gym is not None


@functools.cache
def _known(name: str) -> tuple[Any, Any]:
    """The classes of a family and of its settings, if answers can be judged without running them."""
    check_ready()
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        raise UsageError(f"reasoning-gym has no family {name!r}{did_you_mean(name, DATASETS)}")
    made_by, settings = DATASETS[name]
    calls = _calls(inspect.getsource(sys.modules[made_by.__module__]))
    if runs := sorted(calls & RUNS_CODE):
        raise UsageError(
            f"family {name!r} of reasoning-gym calls {runs[0]}, which runs an answer as code; choose one "
            "that compares answers"
        )
    return made_by, settings


def _calls(source: str) -> set[str]:
    """Names of all functions and methods that are called in a source."""
    called = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    names = {f.id for f in called if isinstance(f, ast.Name)}
    methods = {f.attr for f in called if isinstance(f, ast.Attribute)}
    return names | methods - {"compile"}  # of a regular expression


class _literal_eval:
    """Inside, `eval` of a module runs what the item itself holds, and reads anything else as a literal."""

    def __init__(self, module: Any, item: Mapping[str, Any]) -> None:
        self._module, self._trusted = module, set(_texts(item))

    def __enter__(self) -> None:
        def guarded(text: Any, *scopes: Any) -> Any:
            return eval(text, *scopes) if text in self._trusted else ast.literal_eval(text)

        self._module.eval = guarded

    def __exit__(self, *_: object) -> None:
        del self._module.eval


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _config(name: str, asked: Mapping[str, str]) -> dict[str, Any]:
    """The family's settings, decoded as JSON where they are."""
    _, settings = _known(name)
    own = {field.name for field in dataclasses.fields(settings)} - {"seed", "size"}
    for key in asked:
        if key not in own:
            raise UsageError(
                f"family {name!r} of reasoning-gym has no setting {key!r}{did_you_mean(key, own)}; it has: "
                f"{', '.join(sorted(own))}, and every family train, dev, test, seed"
            )
    return {key: _decoded(value) for key, value in asked.items()}


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _count(path: str, name: str, text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"[data] path = {path!r}: {name} is a number, got {text!r}")
    return int(text)
