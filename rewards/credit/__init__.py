"""Who gets the credit? Whole groups of turns in, returns and advantages out; token level is in stages."""
