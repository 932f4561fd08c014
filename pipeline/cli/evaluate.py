"""`run evaluate`: the scores of a run's weights on held-out tasks."""

from __future__ import annotations

from pipeline.cli.options import Config, Json, Set


def evaluate(config: Config = "pipeline.toml", set_: Set = None, as_json: Json = False) -> None:
    """Evaluate the run that the settings name on [evaluate] split, at the weights that it has now."""
    from pipeline.plan.assemble import assemble, assemble_evaluation
    from pipeline.plan.overview import check_start
    from pipeline.settings.reading import load_settings

    plan = assemble(load_settings(config, set_ or []))
    evaluation = assemble_evaluation(plan)
    check_start(plan)
    from pipeline.run.session import session
    from pipeline.views.summary import print_evaluation

    with session(plan) as runner:
        evaluated = runner.evaluate(evaluation)
        runner.curves()
    print_evaluation(evaluated, as_json=as_json)
