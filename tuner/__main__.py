"""``python -m tuner``."""

from tuner.cli import app

app()
