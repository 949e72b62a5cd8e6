"""The pytest plug-in: the conformance suite against any store, from the command line alone.

    pytest --pyargs offload.testing.test_store --offload-store URL

It adds two options and nothing else: every pytest beside this package loads it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that name a store."""
    group = parser.getgroup("offload", "conformance of a store (offload.testing.test_store)")
    group.addoption(
        "--offload-store",
        metavar="URL",
        help="Test the store at this URL, under a random folder of it that is emptied afterwards.",
    )
    group.addoption(
        "--offload-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="A storage option of that store, as text; may be given several times.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a store that cannot be opened once, before each test would."""
    url = config.getoption("offload_store")
    if url is None:
        return
    from offload.errors import ConfigError  # noqa: PLC0415  # most runs of pytest never get here
    from offload.registry import open_store  # noqa: PLC0415  # the same

    try:
        open_store(url, storage_options=options_of(config))
    except ConfigError as error:
        raise pytest.UsageError(f"--offload-store: {error}") from error


def options_of(config: pytest.Config) -> dict[str, str]:
    """Return the storage options of the command line.

    Raises:
        pytest.UsageError: one of them is not NAME=VALUE.
    """
    given: Sequence[str] = config.getoption("offload_option")
    if not all(text.partition("=")[0] and "=" in text for text in given):
        # Not shown: it may be a secret that lost its name.
        raise pytest.UsageError("--offload-option takes NAME=VALUE, such as endpoint_url=https://host")
    return dict(text.split("=", 1) for text in given)
