"""Which unit of a team's work earned what? One channel each, and their declared mix, which is trained on."""
