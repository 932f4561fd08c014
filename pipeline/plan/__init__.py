"""What will be run? Settings become checked values and stages; nothing here starts, reads or writes a run."""
