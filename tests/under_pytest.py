"""Runs a file of tests on a rank: under_pytest.py FILE"""

from __future__ import annotations

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(["-x", "-q", "--color=no", "-p", "no:cacheprovider", sys.argv[1]]))
