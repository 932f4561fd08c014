"""What does a process of ours need to run well? Imports, threads and memory; nothing of models or tables."""
