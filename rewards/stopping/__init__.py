"""When should a team have stopped? Values of stop decisions, rules to hold against them, measures; pure."""
