"""Whether the chat templates of the models render the chats of the roles that they speak for."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.plan.resolve import Resolved, RolePlan
from stages.engines.base import EngineSpec
from stages.engines.kinds import engine_class, renderer_of
from stages.weights.chat import ChatRenderer
from workflows.errors import UsageError


def check_templates(resolved: Resolved, engines: Mapping[str, EngineSpec]) -> None:
    """Render the shortest chat of every role with the template of its model.

    Models without a checkpoint (scripted ones, those behind an API) have no template here.

    Raises:
        UsageError: a template that can't be read, or that refuses or fails on such a chat, with the role; or
            a role whose shortest prompt does not fit its model.
    """
    renderers: dict[str, ChatRenderer | None] = {}
    for name, plan in resolved.roles.items():
        base = resolved.models.model_of(name).base_id
        if base not in renderers:
            renderers[base] = _renderer(engines[base])
        if (renderer := renderers[base]) is None:
            continue
        role = resolved.workflow.roles[name]
        try:
            ids = renderer.render(role.least_messages(demonstrations=plan.sampling.demonstrations))
        except UsageError as error:
            raise UsageError(
                f"role {name!r}: {error}; change the role's system text or demonstrations, "
                f"models.{plan.model_id}.template_options, or the template"
            ) from None
        _check_room(plan, len(ids), engines[base].max_model_len)


def _check_room(plan: RolePlan, least: int, max_model_len: int) -> None:
    """Refuse a role whose shortest prompt does not fit beside its answer."""
    beside = max_model_len - plan.response_limit
    room = min(beside, plan.sampling.max_prompt_tokens or beside)
    if least <= room:
        return
    where = f"roles.{plan.name}.max_prompt_tokens = {room}"
    if room == beside:
        where = (
            f"models.{plan.model_id}.max_model_len = {max_model_len} leaves {room} beside an answer of "
            f"{plan.response_limit}"
        )
    raise UsageError(
        f"the shortest prompt of role {plan.name!r} has {least} tokens (system text and demonstrations), and "
        f"{where}; raise that, lower roles.{plan.name}.max_response_tokens, or set "
        f"roles.{plan.name}.demonstrations = false"
    )


def _renderer(spec: EngineSpec) -> ChatRenderer | None:
    if not spec.checkpoint or not engine_class(spec.kind).needs_checkpoint:
        return None
    renderer = renderer_of(spec)
    return renderer if isinstance(renderer, ChatRenderer) else None
