"""How do rewards become numbers of turns? Order, weights and reasons; the rewards stand one floor up."""
