"""Use cases on hosts and nodes: what they lack, drains, quarantine, commands, images."""
