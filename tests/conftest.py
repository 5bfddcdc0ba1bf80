from __future__ import annotations

import pytest
from hypothesis import settings

# A slow machine is no failure: times belong to the benchmarks.
settings.register_profile("tracekit", deadline=None)
settings.load_profile("tracekit")


@pytest.fixture(autouse=True, scope="session")
def users_cache_folder(tmp_path_factory: pytest.TempPathFactory):
    """What is decoded in tests is kept with the tests, not in the home of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
