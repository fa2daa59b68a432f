"""Hypothesis: `--hypothesis-profile=thorough` tries fifteen times as many cases as the default."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", max_examples=200, **COMMON)
settings.register_profile("thorough", max_examples=2000, **COMMON)
settings.load_profile("default")
