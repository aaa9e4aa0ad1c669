"""Settings for the whole suite."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

# The suite says the same of the same code every time;
# `--hypothesis-profile=default` looks for new examples.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def _knowledge_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests learn about configurations is not the user's knowledge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_KNOWLEDGE", str(tmp_path_factory.mktemp("user") / "knowledge.json"))
        yield
