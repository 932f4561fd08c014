"""Chat templates of any make are rendered as transformers renders them, or refused in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from stages.weights.chat import ChatRenderer
from tests.support.torch_engines import CHAT
from workflows.errors import UsageError

EACH = "{% for m in messages %}"
TEMPLATES = {
    "generation": EACH + "{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}",
    "generation-scope": "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    + EACH + "{%- generation -%}  {{ m.content }}  {%- endgeneration -%}  {% endfor %}",
    "tojson": EACH + "{{ m | tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=true) }}"
    "{{ m | tojson(indent=2) }}{{ {'b': '<é>'} | tojson }}{% endfor %}",
    "special-tokens": "{{ bos_token }}" + EACH + "{{ m.content + eos_token }}{% endfor %}{{ pad_token }}",
    "tools": "{% if tools is none and documents is none %}none{% endif %}{{ tools is defined }}",
    "loops": EACH + "{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}",
    "strftime": "{{ strftime_now('%Y') }}{{ strftime_now is defined }}",
    "opened": EACH + "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    "namespace": "{% set ns = namespace(n=0) %}" + EACH + "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "whitespace": "  {% if true %}\n a\n  {% endif %}\n" + EACH + "\n {{- m.content | trim -}}\n{% endfor %}",
}  # fmt: skip


@pytest.fixture
def folder(tiny: str, tmp_path: Path) -> Path:
    shutil.copytree(tiny, tmp_path / "m")
    return tmp_path / "m"


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_templates_use_is_there_as_in_transformers(folder: Path, name: str) -> None:
    (folder / "chat_template.jinja").write_text(TEMPLATES[name])
    theirs = AutoTokenizer.from_pretrained(folder)
    expected = theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert ChatRenderer(str(folder)).render(CHAT) == list(expected)


@pytest.mark.parametrize("as_objects", [False, True])
@pytest.mark.parametrize("listed", [False, True])
def test_special_tokens_come_from_special_tokens_map_json_too(
    folder: Path, as_objects: bool, listed: bool
) -> None:
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}{{ messages[0].content }}")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    tokens = {"bos_token": "<|start|>", "eos_token": "<|end|>"}
    for name in tokens:
        config.pop(name, None)
    config.pop("added_tokens_decoder", None)
    if listed:
        config["bos_token"] = "<|text|>"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    values: dict[str, Any] = {k: {"content": v} if as_objects else v for k, v in tokens.items()}
    (folder / "special_tokens_map.json").write_text(json.dumps(values))
    theirs = AutoTokenizer.from_pretrained(folder)
    expected = list(theirs.apply_chat_template(CHAT, return_dict=False))
    ids = ChatRenderer(str(folder)).render(CHAT)
    assert ids == expected
    assert ids[:2] == [2, 1]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}", r"can't be read, line 1: .*endfor"),
        ("a\n{% nonsense %}", r"can't be read, line 2: .*nonsense"),
        ("{{ messages | tojson(nonsense=1) }}", r"fails on a chat of roles \[system, user\]: TypeError"),
        ("{{ messages[0].content + 1 }}", r"fails on a chat .*TypeError"),
        ("{{ messages[0].content.missing() }}", r"refuses a chat of roles"),
        ("{{ raise_exception('only users') }}", r"refuses a chat of roles \[system, user\]: only users"),
        ("{{ 1 // 0 }}", r"fails on a chat .*ZeroDivisionError"),
    ],
)
def test_a_template_that_cannot_be_rendered_is_one_sentence(
    folder: Path, template: str, message: str
) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(UsageError, match=message) as refused:
        ChatRenderer(str(folder)).render(CHAT)
    assert str(folder) in str(refused.value)


def test_a_byte_order_mark_before_a_template_is_no_part_of_it(folder: Path) -> None:
    file = folder / "chat_template.jinja"
    expected = ChatRenderer(str(folder)).render(CHAT)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert ChatRenderer(str(folder)).render(CHAT) == expected
