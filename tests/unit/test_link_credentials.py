"""The directories of a bed's certificate and tokens: other users can replace no file in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.model.errors import InfrastructureError
from orchestrator.node.hostlink import reverse_link
from orchestrator.providers.reverse_link import credentials


def test_a_directory_in_which_others_can_replace_files_is_rejected(tmp_path: Path) -> None:
    links = tmp_path / "shared" / "links"
    credentials.ensure_certificate(links, tmp_path / "bed")
    for directory in (links.parent, links, links / reverse_link.TOKENS):
        directory.chmod(0o770)
        with pytest.raises(InfrastructureError) as error:
            credentials.ensure_certificate(links, tmp_path / "bed")
        assert error.value.hint == f"chmod go-w {directory}"
        directory.chmod(0o750)
        credentials.ensure_certificate(links, tmp_path / "bed")
    if os.geteuid() == 0:
        os.chown(links.parent, 65534, 65534)
        with pytest.raises(InfrastructureError, match="belongs to another user"):
            credentials.ensure_certificate(links, tmp_path / "bed")
