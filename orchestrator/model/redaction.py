"""What is not shown: values of names that look secret, and passwords in URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|PRIVATE|COOKIE", re.IGNORECASE)
USERINFO = re.compile(r"(?<=://)[^/@\s]+@")


def redacted(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of an environment that may be shown."""
    return {
        name: "***" if SECRET.search(name) else USERINFO.sub("***@", value) for name, value in sorted(environ.items())
    }
