"""Training checkpoints as files, read without executing them: torch.save, safetensors, DCP, and directories of frameworks."""
