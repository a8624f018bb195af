"""Fixtures of tests that run a broker and daemons: one exported model and one token file a session.
Folders of tests take them with `from fixtures import assets, folder`."""
import shutil

import pytest

import harness


@pytest.fixture(scope="session")
def assets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("assets")
    harness.tiny_gpt(str(folder))
    harness.tiny_tokens(str(folder))
    return folder


@pytest.fixture
def folder(tmp_path, assets):
    """A folder of this test with the model and the tokens in it."""
    for name in assets.iterdir():
        shutil.copy(name, tmp_path / name.name)
    return str(tmp_path)
