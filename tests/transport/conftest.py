from __future__ import annotations

from collections.abc import Iterator

import pytest
from ends import KINDS, close_all


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[name for name in KINDS if name.startswith("ucx")])
def ucx_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ucx-any has shared memory, too.
@pytest.fixture(params=[name for name in KINDS if name not in ("memory", "ucx-shm")])
def process_kind(request: pytest.FixtureRequest) -> str:
    """One of those that connect processes."""
    return str(request.param)
