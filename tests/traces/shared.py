"""Where the real trace files lie: beside the repository, or not there at all."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parent.parent.parent.parent / "shared" / "traces"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the real traces are not beside the repository (../shared/traces)"
)
