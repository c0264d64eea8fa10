"""The client libraries of clouds, which are optional."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.offsets_store.tokens.client_library import client_library


def test_a_library_that_is_not_installed_is_an_error_that_says_which_extra():
    """The error has the command that installs it."""
    with pytest.raises(ConfigurationError, match=r"PASSWORD_SOURCE_MISSING.*boto3.*pip install 'pgonce\[aws_rds\]'"):
        client_library("no_such_library_zq", "boto3", "aws_rds")


def test_no_library_is_imported_before_its_cloud_is_asked():
    """A job that uses one cloud needs, and loads, the library of that one alone."""
    program = (
        "import sys, pgonce.tokens; "
        "print([name for name in ('boto3', 'botocore', 'azure.identity', 'google.auth', 'databricks.sdk') "
        "if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
