"""Running and judging programs that a model wrote. Start at `judge.CodeJudge`."""
