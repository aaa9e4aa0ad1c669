"""Made-up examples may take their time: the machine that runs the tests may be busy."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
