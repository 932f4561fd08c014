"""The update stage: every row is accounted for, and what was trained is what is announced."""

import os
from dataclasses import dataclass, field

import pyarrow.compute as pc
import pytest

from stages.base import Context
from stages.tables.parquet import TableSink
from stages.training.gradients.spec import MeasureSpec
from stages.training.group import TrainerGroup
from stages.training.spec import TrainerSpec, UpdateReport
from stages.update import UpdateStage, account_of
from workflows.errors import CadreError
from workflows.models import Model
from workflows.trajectory import PARTITION, rows_to_table

MODEL = Model("m", "base", "tiny")


@dataclass
class OneTrainer:
    """The part of a fleet that an update borrows."""

    group: TrainerGroup
    root: str
    announced: list = field(default_factory=list)

    def trainer(self, model_id):
        assert model_id == self.group.spec.model_id
        return self.group

    def version_of(self, model_id):
        return self.group.version

    def checkpoint_uri(self, model_id, version):
        return f"{self.root}/checkpoints/{model_id}/{version:05d}"

    def checkpoint_is_due(self, version):
        return version % 2 == 1

    def weights_changed(self, weights):
        self.announced.append(weights)


def partition(folder, *, version, advantages):
    rows = [
        {
            "episode_id": f"e{i}",
            "turn_index": 0,
            "model_id": "m",
            "policy_version": version,
            "rank": 0,
            "mini_batch": 0,
            "micro_batch": i // 2,
            "prompt_token_ids": [5, 6, 7],
            "response_token_ids": [8 + i, 9] if i else [],  # row 0 has nothing to train on
            "behaviour_logprobs": [-5.0, -5.0] if i else [],
            "temperature": 1.0,
            "advantage": advantage,
        }
        for i, advantage in enumerate(advantages)
    ]
    sink = TableSink("partition/m", str(folder), PARTITION)
    return sink.ref([sink.write_part(0, rows_to_table(rows, PARTITION))])


def test_a_report_that_loses_rows_does_not_pass() -> None:
    report = UpdateReport("m", 0, 0, 1, num_rows=5, num_tokens=9, num_forward_tokens=20, seconds=1.0)
    account_of(report, 5).check()
    with pytest.raises(CadreError, match="rows are lost"):
        account_of(report, 6).check()


@pytest.mark.slow
def test_an_update_leaves_its_tables_checkpoint_and_account_or_says_why_not(ray_cluster, tmp_path) -> None:
    from stages.weights.checkpoints import weights_hash
    from stages.weights.resolve import resolve_checkpoint

    spec = TrainerSpec(
        "m", "base", resolve_checkpoint("tiny"), precision="fp32", num_threads=1, measure=MeasureSpec("exact")
    )
    stage = UpdateStage(MODEL, by_role=True)
    fleet = OneTrainer(TrainerGroup.start(spec, version=0), str(tmp_path))

    def run(iteration, version, advantages):
        outputs = {
            name: TableSink(name, f"{tmp_path}/{iteration}/{place}", stage.outputs[name])
            for name, place in stage.places.items()
        }
        ref = partition(tmp_path / f"p{iteration}", version=version, advantages=advantages)
        result = stage.run({"partition/m": ref}, outputs, Context(iteration, fleet=fleet))
        account, of_roles = result.accounts
        account.check()
        of_roles.check()
        assert of_roles.rows_out == account.rows_out
        return (
            account,
            result,
            {name: outputs[name].ref(parts).read() for name, parts in result.parts.items()},
        )

    account, result, tables = run(0, 0, [0.0] * 5)
    assert (account.rows_in, account.excluded) == (5, {"no response": 1, "no signal": 4})
    assert tables["models/m"].num_rows == 0
    assert tables["updates/m"]["skipped"].to_pylist()[-1].startswith("no signal")
    assert "no signal" in result.notes[0]
    assert fleet.announced == []
    assert not os.path.exists(f"{tmp_path}/checkpoints")

    account, result, tables = run(1, 0, [0.0, 1.0, -1.0, 0.5, 0.0])
    assert (account.rows_out, account.excluded) == (4, {"no response": 1})
    assert tables["updates/m"]["kind"].to_pylist() == ["step", "summary"]
    assert tables["updates/m"]["num_tokens"].to_pylist() == [8, 8]
    whole, role = tables["role_updates/m"].filter(pc.field("kind") == "summary").to_pylist()
    assert (whole["role"], role["num_rows"], role["num_tokens"], role["method"]) == (None, 4, 8, "exact")
    assert role["gradient_norm"] == pytest.approx(result.metrics["gradient_norm"], rel=1e-5)
    assert tables["role_pairs/m"].num_rows == 0
    (entry,) = tables["models/m"].to_pylist()
    (weights,) = fleet.announced
    assert (entry["version"], entry["parent_version"], entry["uri"]) == (1, 0, weights.uri)
    assert entry["hash"] == weights.hash == weights_hash(weights.uri)
    assert result.metrics["num_rows"] == 4
    assert fleet.group.version == 1
    fleet.group.close()
