"""Training: packing, losses, the DeepSpeed worker and its checkpoints."""
