"""Words that belong to another key: `credit.use = "gae"` means `[advantage] use`."""

from __future__ import annotations

from typing import Final

_CREDIT: Final = (
    *("group_relative", "dr_grpo", "grpo", "rloo", "reinforce_pp", "rank_normal", "running_baseline"),
    *("opo", "remax", "rejection"),
)
_LOSSES: Final = ("ppo", "gspo", "message", "cispo", "clip_cov", "kl_cov", "policy_gradient", "supervised")

_DAPO: Final = (
    '[credit] use = "grpo" and truncated = "mask", [ppo] clip_high above clip_low and [schedule] use = '
    '"refill"'
)

# by the kind of thing that was looked for, and the word: how the thing is said
_SAID: Final[dict[str, dict[str, str]]] = {
    "credit.use": {
        "gae": 'GAE makes advantages of tokens, and is [advantage] use = "gae" with a [critic]',
        "ppo": 'PPO is a loss, [ppo] loss = "ppo"; with a critic, set [advantage] use = "gae"',
        **{word: f'that is a loss: [ppo] loss = "{word}"' for word in _LOSSES if word != "ppo"},
        "dapo": f"DAPO is {_DAPO}",
        "reinforce": 'REINFORCE is [ppo] loss = "policy_gradient" with a credit method such as rloo',
    },
    "advantage.use": {
        "group_relative": 'that is a credit method: [credit] use = "group_relative"',
        **{word: f'that is a credit method: [credit] use = "{word}"' for word in _CREDIT},
        "credit": 'the turns\' own advantages are use = "from_credit"',
    },
    "ppo.loss": {
        **{word: f'that is a credit method: [credit] use = "{word}"' for word in _CREDIT},
        "gae": 'GAE makes advantages of tokens, and is [advantage] use = "gae" with a [critic]',
        "dapo": f'DAPO is loss = "ppo" with {_DAPO}',
        "sft": 'imitation is loss = "supervised" with [credit] use = "rejection"',
        "reinforce": 'REINFORCE is loss = "policy_gradient"',
    },
}


def elsewhere(key: str, word: str) -> str:
    """`"; …"` that says where `word` belongs, or an empty string where `key` is as good a place as any."""
    if said := _SAID.get(key, {}).get(word.lower().replace("-", "_")):
        return f"; {said}"
    return ""
