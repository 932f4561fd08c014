"""`run evaluate`: the scores of a run's weights on held-out tasks."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import Config, Json, Set, Votes, VoteTokens, with_votes


def evaluate(
    config: Config = "pipeline.toml",
    set_: Set = None,
    votes: Votes = None,
    vote_tokens: VoteTokens = None,
    redo: Annotated[
        str | None,
        typer.Option(
            "--redo",
            help="Make a stage of this evaluation again, and those after it, with the settings and sources "
            "of now, though it is finished: sample, rollout, evaluate or vote.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Evaluate the run that the settings name on [evaluate] split, at the weights that it has now; with
    evaluate.test and evaluate.vote also on tasks that choose nothing."""
    from pipeline.plan.assemble import assemble, assemble_evaluation
    from pipeline.plan.overview import check_start
    from pipeline.settings.reading import load_settings

    plan = assemble(load_settings(config, with_votes(set_, votes, vote_tokens)))
    evaluation = assemble_evaluation(plan)
    check_start(plan)
    from pipeline.run.session import session
    from pipeline.views.summary import print_evaluation

    with session(plan) as runner:
        evaluated = runner.evaluate(evaluation, is_last=True, redo_from=redo)
        runner.curves()
    print_evaluation(evaluated, as_json=as_json)
