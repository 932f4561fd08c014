"""The ranks of one trainer, as the driver sees them: start, update, save, close."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stages.engines.base import Weights
from stages.tables.parquet import Part, TableRef, TableSink
from stages.training.rank import rank_actor
from stages.training.spec import (
    DistillReport,
    DistillSpec,
    RankingReport,
    RankingSpec,
    TrainerSpec,
    UpdateReport,
)
from stages.training.trust.spec import TrustState
from stages.waiting import Overdue, answers
from workflows.errors import CadreError, RunFailed

Progress = Callable[[int, int], None]  # rows and tokens since the last call
PROGRESS_SECONDS = 300.0  # a rank answers beside its work: one that does not is gone


class TrainerGroup:
    """One process per rank, each a Ray actor with no logical CPU, joined by its own rendezvous.

    Adapters on one base share the processes and the base in them; each has a group of its own, with its
    own optimizer and version.

    Nothing is retried: an update has side effects that must not happen twice. The first rank that
    fails, dies or falls silent ends the group, and the call raises.
    """

    def __init__(
        self, spec: TrainerSpec, actors: Sequence[Any], address: Any, described: dict[str, Any]
    ) -> None:
        self.spec = spec
        self._actors = list(actors)
        self._address = address  # of the rendezvous
        self._described = described
        self._version = int(described["version"])
        self._starting: list[Any] = []  # what `wait_ready` waits for

    @classmethod
    def start(
        cls,
        spec: TrainerSpec,
        *,
        version: int,
        resume: str | None = None,
        beside: TrainerGroup | None = None,
    ) -> TrainerGroup:
        """`begin`, and wait until the ranks are up: 10 to 20 s on a CPU, most of it imports."""
        group = cls.begin(spec, version=version, resume=resume, beside=beside)
        group.wait_ready()
        return group

    @classmethod
    def begin(
        cls,
        spec: TrainerSpec,
        *,
        version: int,
        resume: str | None = None,
        beside: TrainerGroup | None = None,
    ) -> TrainerGroup:
        """Begin to start the ranks from the initial weights, or from the checkpoint folder `resume`.

        They come up by themselves; `wait_ready` has to be called before anything else is asked of the group.

        Args:
            spec: the model.
            version: the policy version that the weights must have; `spec.begins` for the initial ones.
            resume: a whole checkpoint of this model.
            beside: the group of another adapter on the same base: this one starts in its processes.

        Raises:
            RunFailed: a version other than 0 has no checkpoint to resume from.
        """
        if resume is None and version != spec.begins:
            raise RunFailed(
                f"trainer of model {spec.model_id!r} was asked for version {version} without a checkpoint "
                f"to resume from; the initial weights are version {spec.begins}"
            )
        model_id, described = spec.model_id, {"version": version}
        if beside is not None:
            _check_same_base(spec, beside.spec)
            group = cls(spec, beside._actors, beside._address, described)
            for actor in group._actors:
                actor.add.remote(spec)
        else:
            group = cls(spec, [rank_actor(spec, rank) for rank in range(spec.ranks)], None, described)
            # each rank starts once the first one listens: Ray hands it the address when it is there
            group._address = group._actors[0].call.remote(model_id, "listen")
        group._starting = [
            a.call.remote(model_id, "start", group._address, version, resume) for a in group._actors
        ]
        return group

    def wait_ready(self) -> None:
        """Wait until every rank is up.

        Raises:
            RunFailed: a rank could not start within `spec.init_timeout_seconds` from now, or the checkpoint
                is not a complete one of this model at its version. The group is closed then.
        """
        starting, self._starting = self._starting, []
        if starting:
            deadline = time.monotonic() + self.spec.init_timeout_seconds
            self._described = self._gather("start", starting, deadline)[0]

    def check_start(self) -> None:
        """Tell what has already gone wrong with a start that goes on.

        Raises:
            RunFailed: as `wait_ready`.
        """
        import ray

        if self._starting:
            with self._ending_on_failure("start"):
                ray.get(ray.wait(self._starting, num_returns=len(self._starting), timeout=0)[0])

    @property
    def version(self) -> int:
        """The policy version of the weights that this trainer holds."""
        return self._version

    @property
    def is_open(self) -> bool:
        """Whether its processes have not been ended."""
        return bool(self._actors)

    def describe(self) -> dict[str, Any]:
        """`parameters`, `device`, `precision`, `version`, `backend` of rank 0."""
        return {**self._described, "version": self._version}

    def update(
        self,
        partition: TableRef,
        version: int,
        on_progress: Progress | None = None,
        advantages: TableRef | None = None,
        scores: TableRef | None = None,
        off_policy: bool = False,
        at: tuple[int, int] = (0, 0),
        kl_scale: TableRef | None = None,
        trust: TrustState | None = None,
        stop_rows: TableRef | None = None,
    ) -> UpdateReport:
        """Train on one partition and move to the next version, or say why not.

        Each rank reads only its own rows. An update is known by its model, the version that it starts from,
        and the content of what it trains on (`update_id_of`): a second delivery of the newest one returns
        its report and trains nothing, and any other has to start from the trainer's version.

        Args:
            partition: the rows.
            version: of the weights that the update starts from.
            on_progress: called about once a second with the rows and tokens trained since its last
                call (every epoch counts anew).
            advantages: `token_advantages/<model>`, part by part with the rows of the partition; without
                it a row's `advantage` stands for each of its tokens.
            scores: `scores/<model>`, likewise; what it does not have (old logprobs, values) is computed.
            off_policy: take rows that other weights sampled; they must have importance weights, which
                carry the loss from their sampler to the trainer's weights as they are.
            at: the iteration and the block that the update is of.
            kl_scale: `kl_scale/<model>`, whose scale multiplies the KL coefficients of the loss.
            trust: what the trust region begins with, and what was decided of an update that is made again.
            stop_rows: `stop_rows/<model>`, stop decisions that are trained in the same optimizer steps.

        Raises:
            RunFailed: another version than the trainer's, or rows of another one, a partition made for
                more ranks, tables whose rows do not belong together or that lack what the loss needs, a
                loss or gradient that is not finite, or a rank that died or fell silent.
        """
        arguments = (partition, version, advantages, scores, off_policy, at, kl_scale, trust, stop_rows)
        reports = self._call("update", "update", *arguments, watch=on_progress)
        self._version = reports[0].version_after
        return reports[0]

    def settle(self, reason: str | None) -> UpdateReport:
        """Decide on the candidate of the last update, whose report is `on_trial`: keep it, or put back
        weights, optimizer, critic and running means of before it. Its number is spent either way.

        Args:
            reason: why it is taken back; None: it is kept.

        Raises:
            RunFailed: no candidate is on trial, or a rank died or fell silent.
        """
        reports = self._call("settle a trial", "settle", reason)
        self._version = reports[0].version_after
        report: UpdateReport = reports[0]
        return report

    def score(
        self,
        partition: TableRef,
        sink: TableSink,
        needs: frozenset[str],
        on_progress: Progress | None = None,
        off_policy: bool = False,
        bootstrap: frozenset[tuple[str, int]] = frozenset(),
    ) -> list[Part]:
        """Forward over all rows: part k of `scores/<model>` has the rows of part k of the partition.

        Nothing changes, and a second call writes the same bits.

        Args:
            partition: the rows; a part holds those of one rank.
            sink: where the parts go.
            needs: of "old", "reference" and "values"; columns that are not needed are null.
            on_progress, off_policy: as for `update`.
            bootstrap: keys of the rows that also get the value of the state after their last token.

        Raises:
            RunFailed: rows of another version, no critic or reference where one is needed, or a rank
                that died or fell silent.
        """
        written: dict[int, Part] = {}
        arguments = (partition, sink, needs, off_policy, bootstrap)
        for parts in self._call("score", "score", *arguments, watch=on_progress):
            written |= parts
        return [written[index] for index in range(len(partition.parts))]

    def distill(
        self, partition: TableRef, spec: DistillSpec, prompts: TableRef | None = None
    ) -> DistillReport:
        """Teach the model what another one said; its version stays, since no iteration made it.

        Args:
            partition: the rows, as this model reads them; whatever weights sampled them.
            spec: the teacher, and how far from it the model may stay.
            prompts: the same rows with the teacher's prompts, where its chat template writes others.

        Raises:
            RunFailed: rows that can't be trained on, a loss or gradient that is not finite, or a rank that
                died or fell silent.
        """
        report: DistillReport = self._call("teach", "distill", partition, spec, prompts)[0]
        return report

    def learn_ranking(
        self,
        partition: TableRef,
        pairs: TableRef,
        spec: RankingSpec,
        until: int,
        on_progress: Progress | None = None,
    ) -> RankingReport:
        """Learn which of two plays earned more, up to the version `until`: a version is an optimizer step.

        Args:
            partition: the plays, a row each.
            pairs: of `PAIRS`: which of two plays earned more.
            spec: what is trained.
            until: the version that is reached.
            on_progress: as for `update`.

        Raises:
            RunFailed: rows that can't be trained on, a loss or gradient that is not finite, or a rank that
                died or fell silent.
        """
        arguments = (partition, pairs, spec, until)
        report: RankingReport = self._call("learn", "learn_ranking", *arguments, watch=on_progress)[0]
        self._version = until
        return report

    def value_head(self) -> dict[str, Any]:
        """The value head: `weight` (heads, width) and `bias` (heads,), as lists of numbers."""
        head: dict[str, Any] = self._call("read the value head", "value_head")[0]
        return head

    def save(self, uri: str) -> Weights:
        """Write a whole checkpoint: weights for engines and the state to resume from. Manifest last."""
        return self._write(uri, trainer_state=True)

    def publish(self, uri: str) -> Weights:
        """Write the weights only, in the same layout: no run can resume from such a folder."""
        return self._write(uri, trainer_state=False)

    def memory(self) -> list[int]:
        """Resident bytes of each rank's process."""
        return self._call("measure memory", "memory")

    def peak_memory(self) -> list[int]:
        """The most bytes that each rank's process has had resident."""
        return self._call("measure memory", "peak_memory")

    def release(self) -> None:
        """Hand back what the last update took for activations: for trainers that wait side by side.

        Not done after every update: taking the pages anew costs a quarter of the next one.
        """
        self._call("release memory", "release")

    def close(self) -> None:
        """End the rank processes and free their memory, and so for adapters beside this one. Safe to call
        twice."""
        import ray

        for actor in self._actors:
            with contextlib.suppress(Exception):  # already dead, or Ray is already down
                ray.kill(actor)
        self._actors = []

    def _write(self, uri: str, *, trainer_state: bool) -> Weights:
        from stages.training.checkpoint import commit, prepare

        prepare(uri)
        receipts = self._call("save", "write", uri, trainer_state)
        return commit(uri, self.spec, receipts)

    def _watch(self, on_progress: Progress) -> Callable[[], None]:
        """A function that tells `on_progress` what was trained since it was called last."""
        seen = (0, 0)

        def so_far() -> tuple[int, int]:
            asked = [a.progress.remote(self.spec.model_id) for a in self._actors]
            counts = answers(
                asked, f"the progress of the trainer of model {self.spec.model_id!r}", PROGRESS_SECONDS
            )
            return sum(rows for rows, _ in counts), sum(tokens for _, tokens in counts)

        def tell() -> None:
            nonlocal seen
            now = so_far()
            if now != seen:
                on_progress(now[0] - seen[0], now[1] - seen[1])
                seen = now

        seen = so_far()
        return tell

    def _call(self, what: str, method: str, *arguments: Any, watch: Progress | None = None) -> list[Any]:
        if not self._actors:
            raise RunFailed(f"trainer of model {self.spec.model_id!r} is closed; can't {what}")
        deadline = time.monotonic() + self.spec.update_timeout_seconds
        with self._ending_on_failure(what):
            tell = self._watch(watch) if watch else None
            refs = [a.call.remote(self.spec.model_id, method, *arguments) for a in self._actors]
            results = self._gather(what, refs, deadline, tell, "cluster.update_seconds")
            if tell:
                tell()
        return results

    def _gather(
        self,
        what: str,
        refs: list[Any],
        deadline: float,
        watch: Callable[[], None] | None = None,
        setting: str = "cluster.trainer_start_seconds",
    ) -> list[Any]:
        """Results of all ranks; the first failure or a passed deadline ends the whole group."""
        called = f"trainer of model {self.spec.model_id!r}: {what}"
        with self._ending_on_failure(what):
            try:
                return answers(
                    refs, called, max(0.0, deadline - time.monotonic()), setting=setting, tick=watch
                )
            except Overdue as late:
                ranks = ", ".join(map(str, late.unfinished))
                raise RunFailed(f"{late}; rank {ranks} of {self.spec.ranks} gave no answer") from None

    @contextlib.contextmanager
    def _ending_on_failure(self, what: str) -> Iterator[None]:
        """Whatever fails inside ends the group; a rank's death or its own fault comes as one message."""
        import ray

        try:
            yield
        except ray.exceptions.RayError as error:
            self.close()
            raise _plain(error, self.spec, what) from None
        except BaseException:
            self.close()
            raise


def _check_same_base(spec: TrainerSpec, other: TrainerSpec) -> None:
    """What the processes and the base are made from is the same for all adapters on it."""
    shared = ("base_id", "checkpoint", "ranks", "precision", "shared_prefix", "activation_checkpointing")
    assert spec.adapter is not None and other.adapter is not None  # noqa: PT018
    for name in (*shared, "num_threads", "num_gpus"):
        assert getattr(spec, name) == getattr(other, name), f"{name} of adapters on one base"


def _plain(error: Exception, spec: TrainerSpec, what: str) -> CadreError:
    """A worker's own error as itself; anything else as one sentence with the worker's last words."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, CadreError):
        return cause
    words = str(cause if cause is not None else error).strip().splitlines()
    last = next((line.strip() for line in reversed(words) if line.strip()), type(error).__name__)
    hint = ""
    if type(error).__name__ in ("ActorDiedError", "WorkerCrashedError", "OutOfMemoryError"):
        hint = "; a rank's process ended, most often because memory ran out: lower the micro-batch tokens"
    return RunFailed(f"trainer of model {spec.model_id!r} failed to {what}: {last}{hint}")
