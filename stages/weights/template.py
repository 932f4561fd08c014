"""A model's chat template, rendered as transformers renders it, without transformers.

Templates get `messages`, `add_generation_prompt`, `tools` and `documents` (None), the special tokens by
name, and the settings' options; the filter `tojson` with its keywords, `raise_exception`,
`strftime_now`, loop controls and `{% generation %}` blocks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

from workflows.errors import UsageError

SPECIAL_TOKENS: Final = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)
_MAX_WORDS: Final = 300  # characters of an error of the template that ours keeps
# What a template's own code can raise beside Jinja's errors: it calls methods and filters on values.
_ITS_ERRORS: Final = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)


def special_tokens_of(folder: Path) -> dict[str, str]:
    """The named special tokens of a tokenizer's folder.

    Those of tokenizer_config.json, and of special_tokens_map.json, which counts first where the former
    does not list the added tokens. That is how transformers 5 reads them.
    """
    config, older = (_json_of(folder / n) for n in ("tokenizer_config.json", "special_tokens_map.json"))
    merged = {**older, **config} if "added_tokens_decoder" in config else {**config, **older}
    tokens = {name: _content(merged.get(name)) for name in SPECIAL_TOKENS}
    return {name: token for name, token in tokens.items() if token is not None}


def chat_template_of(folder: Path) -> str | None:
    """`chat_template.jinja`, or what tokenizer_config.json says (the default one of several)."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8-sig")
    template = _json_of(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template if isinstance(template, str) else None


def compile_template(
    template: str, special_tokens: Mapping[str, str], where: str
) -> Callable[[Sequence[Mapping[str, Any]], bool, Mapping[str, Any]], str]:
    """A function from messages, whether the assistant's turn is opened, and options to text.

    Raises:
        UsageError: the template can't be compiled. The function raises it where the template refuses a
            chat or fails on it.
    """
    from jinja2 import TemplateError, TemplateSyntaxError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation(), loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=lambda form: datetime.now().strftime(form)
    )
    try:
        compiled = environment.from_string(template)
    except TemplateSyntaxError as error:
        raise UsageError(
            f"the chat template of {where} can't be read, line {error.lineno}: {error.message}; it must be "
            "one that transformers renders"
        ) from None

    def render(messages: Sequence[Mapping[str, Any]], opened: bool, options: Mapping[str, Any]) -> str:
        variables = {"tools": None, "documents": None, **special_tokens, **options}
        try:
            return compiled.render({**variables, "messages": list(messages), "add_generation_prompt": opened})
        except TemplateError as error:
            what, words = "refuses", str(error)
        except _ITS_ERRORS as error:
            what, words = "fails on", f"{type(error).__name__}: {error}"
        roles = ", ".join(str(m.get("role")) for m in messages)
        raise UsageError(
            f"the chat template of {where} {what} a chat of roles [{roles}]: {words[:_MAX_WORDS]}"
        )

    return render


def _generation() -> Any:
    """The tag `{% generation %}`, which marks what the assistant says: its body is rendered as it is."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  (Jinja's own interface)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            # a call block, not the bare body: what is set within stays within, as in transformers
            return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

        def _said(self, caller: Callable[[], str]) -> str:
            return caller()

    return Generation


def _json_of(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise UsageError(f"{file} can't be read as JSON: {error}; save the tokenizer anew") from None
    return content if isinstance(content, dict) else {}


def _content(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: Jinja's own filter escapes HTML characters."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)
