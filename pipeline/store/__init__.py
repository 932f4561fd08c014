"""What lies in a run's folder, and where? Reading and writing it; nothing here computes or prints."""
