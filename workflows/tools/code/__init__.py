"""What does a program that a model wrote do? Sandbox and verdicts, from `judge.CodeJudge`; no reward."""
