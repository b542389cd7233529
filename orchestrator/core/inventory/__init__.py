"""Inventories: hosts and variables from YAML and Ansible, each with its source position."""
