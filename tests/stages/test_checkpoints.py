"""Model folders: named, copied, described and refused without loading a weight."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest

from stages.weights.__main__ import main
from stages.weights.checkpoints import (
    describe_checkpoint,
    require_hash,
    require_same_tensors,
    shapes_of,
    weights_hash,
)
from stages.weights.resolve import resolve_checkpoint
from workflows.errors import RunFailed, UsageError


@pytest.fixture(scope="module")
def tiny() -> str:
    return resolve_checkpoint("tiny")


@pytest.fixture
def copy(tiny: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_tiny_is_the_same_bits_wherever_it_is_built(tiny: str, tmp_path: Path) -> None:
    again = resolve_checkpoint("tiny", str(tmp_path))
    assert again != tiny
    assert weights_hash(again) == weights_hash(tiny)
    assert describe_checkpoint(again) == describe_checkpoint(tiny)


def test_a_description_equals_what_the_loaded_model_says(tiny: str) -> None:
    from transformers import AutoModelForCausalLM

    info, model = describe_checkpoint(tiny), AutoModelForCausalLM.from_pretrained(tiny)
    assert info.architecture == type(model).__name__
    assert info.parameters == model.num_parameters()
    assert info.vocab_size == model.get_input_embeddings().num_embeddings == 260
    assert info.head_size == model.config.head_dim >= 32
    assert info.max_positions == model.config.max_position_embeddings
    assert info.dtype == str(model.dtype).removeprefix("torch.")
    assert info.bytes == (Path(tiny) / "model.safetensors").stat().st_size


def test_a_build_that_was_killed_leaves_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    """Killed while it writes: the folder of that name does not exist until it is whole."""
    script = (
        "import os, sys; from pathlib import Path; from stages.weights import resolve\n"
        "def build(folder):\n"
        "    (folder / 'half').write_text('x'); os.kill(os.getpid(), 9)\n"
        "resolve.SHIPPED['tiny'] = (lambda: '1', build)\n"
        "resolve.resolve_checkpoint('tiny', sys.argv[1])\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=Path(__file__).parents[2])
    assert killed.returncode == -9
    assert not (tmp_path / "tiny-1").exists()
    assert list(tmp_path.glob("*.building"))
    folder = resolve_checkpoint("tiny", str(tmp_path))
    assert describe_checkpoint(folder).vocab_size == 260
    assert not list(tmp_path.glob("*.building"))


def test_a_folder_is_used_where_it_lies_and_a_url_is_copied_once_for_each_content(
    copy: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    assert resolve_checkpoint(str(copy)) == str(copy)
    assert resolve_checkpoint(f"file://{copy}") == str(copy)
    memory = fsspec.filesystem("memory")
    memory.put(str(copy), "/models/mine", recursive=True)
    first = resolve_checkpoint("memory://models/mine", str(cache))
    assert weights_hash(first) == weights_hash(str(copy))
    assert resolve_checkpoint("memory://models/mine", str(cache)) == first
    memory.pipe_file("/models/mine/config.json", b"{}")
    assert resolve_checkpoint("memory://models/mine", str(cache)) != first
    memory.rm("/models", recursive=True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tinny", "did you mean 'tiny'"),
        ("/no/such/folder", "nor a folder that exists"),
        ("file:///no/such/folder", "not a folder that exists"),
        ("nope://bucket/model", "can't be opened"),
    ],
)
def test_names_that_lead_nowhere_are_refused(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        resolve_checkpoint(name, str(tmp_path))


def test_a_hub_id_that_can_not_be_fetched_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="can't be fetched from the Hugging Face hub"):
        resolve_checkpoint("no-such-owner/no-such-model")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "holds BertForMaskedLM, which is not a causal"),
        ({"architectures": None}, "holds none"),
        ({"architectures": ["T5ForCausalLM"], "is_encoder_decoder": True}, "not a causal"),
    ],
)
def test_a_model_that_is_not_a_causal_one_is_refused(copy: Path, changes: dict[str, Any], said: str) -> None:
    change_config(copy, **changes)
    with pytest.raises(UsageError, match=said):
        describe_checkpoint(str(copy))


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("config.json", "config.json is missing"),
        ("tokenizer.json", "tokenizer.json is missing"),
        ("chat_template.jinja", "no chat template"),
        ("model.safetensors", "no \\*.safetensors file"),
    ],
)
def test_a_folder_that_lacks_a_file_is_refused_by_its_name(copy: Path, file: str, said: str) -> None:
    (copy / file).unlink()
    with pytest.raises(UsageError, match=said):
        describe_checkpoint(str(copy))


def test_weights_that_were_copied_halfway_are_refused(copy: Path) -> None:
    os.truncate(copy / "model.safetensors", 100_000)
    with pytest.raises(UsageError, match="cut off: 100,000 bytes"):
        describe_checkpoint(str(copy))
    (copy / "model.safetensors").write_bytes(b"not a header")
    with pytest.raises(UsageError, match="not a safetensors file"):
        describe_checkpoint(str(copy))


def test_a_missing_shard_is_refused(copy: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match=r"lacks model-2\.safetensors"):
        describe_checkpoint(str(copy))


def test_a_hash_changes_with_one_bit_and_only_with_the_weights(copy: Path) -> None:
    before = weights_hash(str(copy))
    change_config(copy, note="other")
    assert weights_hash(str(copy)) == before
    require_hash(str(copy), before)
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    assert weights_hash(str(copy)) != before
    with pytest.raises(RunFailed, match="was announced"):
        require_hash(str(copy), before)


def test_the_tokenizer_hash_covers_the_template(copy: Path) -> None:
    before = describe_checkpoint(str(copy)).tokenizer_hash
    template = copy / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    assert describe_checkpoint(str(copy)).tokenizer_hash != before


def test_weights_of_another_shape_are_told_apart_by_their_headers(tiny: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(str(Path(tiny) / "model.safetensors"))
    name = "model.norm.weight"
    save_file({**tensors, name: tensors[name][:8].clone()}, str(tmp_path / "model.safetensors"))
    shapes = shapes_of(tiny)
    require_same_tensors(tiny, shapes, tiny)
    with pytest.raises(RunFailed, match=rf"{name} should have shape \[64\], found \[8\]"):
        require_same_tensors(str(tmp_path), shapes, tiny)
    del tensors[name]
    save_file(tensors, str(tmp_path / "model.safetensors"))
    with pytest.raises(RunFailed, match="no such tensor"):
        require_same_tensors(str(tmp_path), shapes, tiny)


def test_prepare_prints_the_folder_and_refuses_with_exit_code_2(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", "tiny"]) == 0
    assert tiny in capsys.readouterr().out
    assert main(["prepare", "tinny"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_looking_into_a_model_folder_imports_no_torch() -> None:
    script = (
        "import sys; from stages.weights import checkpoints, resolve\n"
        "from stages.engines import start, client\n"
        "from stages.engines.vllm import server; from stages.engines.torch import server\n"
        "checkpoints.describe_checkpoint(resolve.resolve_checkpoint('tiny'))\n"
        "heavy = {'torch', 'transformers', 'vllm', 'ray'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    resolve_checkpoint("tiny")
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    assert done.returncode == 0
