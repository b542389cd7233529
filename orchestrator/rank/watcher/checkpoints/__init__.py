"""Saves and loads of checkpoints, observed where PyTorch and safetensors make them."""
