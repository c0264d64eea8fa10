"""
Run an object store without a cloud: S3Proxy speaks S3, and checks signatures.

Runs in: any process; the server is one JVM of its own. Invariant: it lives as long as its owner and no longer, and
leaves no process and no directory.
"""

from __future__ import annotations

import secrets
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

from free_ports import free_port
from jvm import Jvm
from maven import MissingTool, jars_of_pom
from typing_extensions import Self

__all__ = ["MissingTool", "ObjectStore", "s3a_jars"]

_POMS = Path(__file__).resolve().parent
_READY_SECONDS = 120.0
_OPTIONS = ("-Xmx256m", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def s3a_jars() -> list[Path]:
    """Jars for ``spark.jars`` with which Spark reads and writes ``s3a://``. :raises MissingTool:"""
    return jars_of_pom(_POMS / "s3a" / "pom.xml")


class ObjectStore:
    """
    One server with one bucket; a context manager.

    :raises MissingTool: if Maven or Java is missing.
    """

    bucket = "lake"

    def __init__(self) -> None:
        self._jvm = Jvm("s3proxy", jars_of_pom(_POMS / "s3proxy" / "pom.xml"), _OPTIONS)
        self.port = free_port()
        self.access_key, self.secret_key = secrets.token_hex(8), secrets.token_hex(16)

    def __enter__(self) -> Self:
        properties = self._jvm.home / "s3proxy.properties"
        values = {
            "s3proxy.endpoint": f"http://127.0.0.1:{self.port}",
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": self.access_key,
            "s3proxy.credential": self.secret_key,
            # In memory. Over a folder on the disk, it takes the beginning of a key for a key, and s3a for a file.
            "jclouds.provider": "transient",
        }
        properties.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self._jvm.start("org.gaul.s3proxy.Main", "--properties", str(properties))
        self._wait_until_it_answers()
        self._create_bucket()
        return self

    def __exit__(self, *_: object) -> None:
        self._jvm.end(signal.SIGKILL)
        self._jvm.remove()

    def environment(self, port: int | None = None) -> dict[str, str]:
        """What Amazon's own programs, pyarrow and Spark take credentials, region and endpoint from."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_EC2_METADATA_DISABLED": "true",
            # Newer programs of Amazon's send checksums in a form that few other stores know.
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        }

    def spark_settings(self, port: int | None = None) -> dict[str, str]:
        """Spark's way to the store, without credentials."""
        return {
            "spark.jars": ",".join(map(str, s3a_jars())),
            "spark.hadoop.fs.s3a.endpoint": f"http://127.0.0.1:{port or self.port}",
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        }

    def _create_bucket(self) -> None:
        from pyarrow.fs import S3FileSystem

        S3FileSystem(
            access_key=self.access_key,
            secret_key=self.secret_key,
            region="us-east-1",
            endpoint_override=f"http://127.0.0.1:{self.port}",
            allow_bucket_creation=True,
        ).create_dir(self.bucket)

    def _wait_until_it_answers(self) -> None:
        until = time.monotonic() + _READY_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5).close()
            except urllib.error.HTTPError:
                return  # it refuses a request that is not signed
            except OSError:
                self._jvm.check()
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return
