"""How were the shipped task files made? Run by hand; nothing of a run imports these."""
