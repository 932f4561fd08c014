"""How far may one update move a policy? A radius in nats, what keeps to it, and what was decided."""
