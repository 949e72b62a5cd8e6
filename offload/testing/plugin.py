"""The pytest plug-in that runs the conformance suite against any store from the command line.

pytest -p offload.testing.plugin --pyargs offload.testing.test_store --offload-store URL
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from offload.errors import ConfigError
from offload.storage.registry import open_store


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that name a store."""
    group = parser.getgroup("offload", "conformance of a store (offload.testing.test_store)")
    group.addoption(
        "--offload-store",
        metavar="URL",
        help="Test the store at this URL, in a random folder that is emptied afterwards.",
    )
    group.addoption(
        "--offload-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="A storage option of the store, as text; repeat the option for several.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a store that cannot be opened, once and before any test."""
    url = config.getoption("offload_store")
    if url is None:
        return
    try:
        open_store(url, storage_options=options_of(config))
    except ConfigError as error:
        raise pytest.UsageError(f"--offload-store: {error}") from error


def options_of(config: pytest.Config) -> dict[str, str]:
    """Return the storage options of the command line. Raises `UsageError` if one is not NAME=VALUE."""
    options: Sequence[str] = config.getoption("offload_option")
    if not all(text.partition("=")[0] and "=" in text for text in options):
        # The text may be a secret whose name is missing, so the error does not quote it.
        raise pytest.UsageError("--offload-option must be NAME=VALUE, such as endpoint_url=https://host")
    return dict(text.split("=", 1) for text in options)
