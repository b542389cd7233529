"""Ansible at the edge: inventories that it lists, hosts that it prepares, images that it brings there."""
