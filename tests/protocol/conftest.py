"""Hypothesis: `--hypothesis-profile=thorough` tries ten times as many cases as the default."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", max_examples=300, **COMMON)
settings.register_profile("thorough", max_examples=3000, **COMMON)
settings.load_profile("default")
