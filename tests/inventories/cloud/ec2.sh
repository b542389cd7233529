#!/bin/sh
# The form in which inventory plugins of clouds arrive: values are marked as unsafe, and names are those of the cloud.
cat <<'JSON'
{"_meta": {"hostvars": {
  "ec2-127-0-44-41.compute.example": {"ansible_host": {"__ansible_unsafe": "127.0.44.41"}, "ansible_user": {"__ansible_unsafe": "ubuntu"},
    "instance_type": {"__ansible_unsafe": "p4d.24xlarge"}, "tags": {"Name": {"__ansible_unsafe": "a {{ b }}"}}},
  "ec2-127-0-44-42.compute.example": {"ansible_host": {"__ansible_unsafe": "127.0.44.42"}, "ansible_user": {"__ansible_unsafe": "ubuntu"},
    "instance_type": {"__ansible_unsafe": "p4d.24xlarge"}, "tags": {"Name": {"__ansible_unsafe": "b"}}}}},
 "all": {"children": ["aws_ec2", "ungrouped"]},
 "aws_ec2": {"hosts": ["ec2-127-0-44-41.compute.example", "ec2-127-0-44-42.compute.example"]}}
JSON
