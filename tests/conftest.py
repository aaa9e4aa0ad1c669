"""One setting for the whole suite."""

from hypothesis import settings

# The suite says the same of the same code every time;
# `--hypothesis-profile=default` looks for new examples.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")
