"""A chat becomes the ids that the template of its model makes of it."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from stages.weights.chat import ChatRenderer
from tests.support.torch_engines import CHAT
from workflows.errors import UsageError


def test_a_chat_becomes_the_ids_that_transformers_makes_of_it(tiny: str) -> None:
    ours, theirs = ChatRenderer(tiny), AutoTokenizer.from_pretrained(tiny)
    ids = theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert ours.render(CHAT) == ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_the_templates_begin_token_is_the_only_one(tiny: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny, add_bos_token=True)
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}\n    {{ m | tojson }}\n{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    ids = ChatRenderer(str(tmp_path)).render(CHAT)
    assert ids == tokenizer.apply_chat_template(CHAT, return_dict=False)
    assert ids.count(tokenizer.bos_token_id) == 1


def test_a_chat_that_the_template_refuses_is_a_usage_error(tiny: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = "{{ raise_exception('no system messages') }}"
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"\[system, user\].*no system messages"):
        ChatRenderer(str(tmp_path)).render(CHAT)


def test_options_of_a_template_reach_it_and_are_part_of_what_is_rendered(tiny: str, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "m")
    template = "{% if thinking %}<think>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    (tmp_path / "m" / "chat_template.jinja").write_text(template)
    plain, thinks = (ChatRenderer(str(tmp_path / "m"), options) for options in ({}, {"thinking": True}))
    assert plain.decode(plain.render(CHAT)) != thinks.decode(thinks.render(CHAT))
    assert thinks.decode(thinks.render(CHAT)).startswith("<think>")
    assert plain.tokenizer_hash != thinks.tokenizer_hash
    assert pickle.loads(pickle.dumps(thinks)).render(CHAT) == thinks.render(CHAT)


def test_a_renderer_pickles_small_and_renders_the_same(tiny: str) -> None:
    renderer = ChatRenderer(tiny)
    ids = renderer.render(CHAT)
    data = pickle.dumps(renderer)
    assert len(data) < 500
    assert pickle.loads(data).render(CHAT) == ids
