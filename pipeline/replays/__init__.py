"""What comes of stored tables with other settings? Pure stages over a run; its plays stay."""
