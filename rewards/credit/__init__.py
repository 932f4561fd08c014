"""Credit methods: whole groups of turns in, returns and advantages out."""
