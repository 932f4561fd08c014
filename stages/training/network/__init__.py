"""What is trained? Packed forward passes, adapters, critics and DeepSpeed; no loss and no table."""
