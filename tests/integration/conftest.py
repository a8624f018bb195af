"""Fixtures shared by the integration tests."""
import pytest

import harness
from fixtures import assets, folder  # noqa: F401  fixtures


@pytest.fixture
def cluster(folder):  # noqa: F811
    with harness.Cluster(folder) as running:
        yield running
