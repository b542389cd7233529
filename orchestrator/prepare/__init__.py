"""Preparation of hosts with Ansible: inventories that it lists, hosts and images that it prepares."""
