"""
Run a real Kafka that authenticates its users, encrypts, and denies what they are not permitted.

Runs in: any process; the broker is one JVM of its own. Invariant: users and certificates are made for this broker, and
go away with it.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from free_ports import free_ports
from kafka_broker import KafkaBroker

__all__ = ["SecureKafkaBroker"]

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_SASL_LISTENERS = ("sasl_ssl", "sasl_plaintext")


class SecureKafkaBroker(KafkaBroker):
    """
    A broker with a listener for each security protocol of Kafka; the one for SSL asks for a certificate.

    A user who has logged in may do everything, except what :meth:`deny` has taken from ``user``.

    ``user`` and ``password`` are known by PLAIN and by SCRAM-SHA-256. ``authority`` is the PEM file by which clients
    know the broker, and ``identity`` the PEM file, with key and certificate, by which the broker knows a client.
    """

    def __init__(self) -> None:
        super().__init__()
        # A password full of characters that mean something in JAAS and in properties.
        self.user, self.password = "streamer", f"p';{secrets.token_hex(8)}#!"
        self._ports = dict(zip(("SSL", "SASL_PLAINTEXT", "SASL_SSL"), free_ports(3), strict=True))
        ca = trustme.CA()
        self.authority = self._jvm.home / "authority.pem"
        self.identity = self._jvm.home / "identity.pem"
        ca.cert_pem.write_to_path(str(self.authority))
        _write(ca.issue_cert("client.test"), self.identity)
        _write(ca.issue_cert("127.0.0.1"), self._jvm.home / "server.pem")
        self._format_options = ("--add-scram", f"SCRAM-SHA-256=[name={self.user},password={self.password}]")

    def servers(self, protocol: str) -> str:
        """The address of the listener for this security protocol."""
        return f"127.0.0.1:{self._ports[protocol]}"

    def jaas(self, module: str = _PLAIN, password: str | None = None) -> str:
        """What Kafka's clients take as sasl.jaas.config, to log in as the broker's user."""
        return f'{module} required username="{self.user}" password="{password or self.password}";'

    def scram(self, password: str | None = None) -> str:
        """The same for SCRAM."""
        return self.jaas(_SCRAM, password)

    def deny(self, topic: str) -> None:
        """Take all rights on a topic from ``user``."""
        from confluent_kafka import admin

        client = admin.AdminClient({"bootstrap.servers": self.bootstrap_servers})
        where = (admin.ResourceType.TOPIC, topic, admin.ResourcePatternType.LITERAL, f"User:{self.user}", "*")
        what = (admin.AclOperation.ALL, admin.AclPermissionType.DENY)
        denied = admin.AclBinding(*where, *what)
        client.create_acls([denied])[denied].result(timeout=30)
        # The broker answers before it knows of it itself.
        while not client.describe_acls(admin.AclBindingFilter(*where, *what)).result(timeout=30):
            time.sleep(0.05)

    def _values(self) -> dict[str, str]:
        values = super()._values()
        more = ",".join(f"{protocol}://{self.servers(protocol)}" for protocol in self._ports)
        values["listeners"] += f",{more}"
        values["advertised.listeners"] += f",{more}"
        for listener in _SASL_LISTENERS:
            known = f'user_{self.user}="{self.password}"'
            values[f"listener.name.{listener}.sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256"
            values[f"listener.name.{listener}.plain.sasl.jaas.config"] = f"{_PLAIN} required {known};"
            values[f"listener.name.{listener}.scram-sha-256.sasl.jaas.config"] = f"{_SCRAM} required;"
        names = ("PLAINTEXT", *self._ports)
        return values | {
            "listener.security.protocol.map": ",".join([*(f"{name}:{name}" for name in names), "CONTROLLER:PLAINTEXT"]),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._jvm.home / "server.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "listener.name.ssl.ssl.client.auth": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            # Who comes without TLS and without a login, as the broker itself does.
            "super.users": "User:ANONYMOUS",
        }


def _write(issued: trustme.LeafCert, path: Path) -> None:
    """Key and certificates in one file. Java reads keys in PKCS #8 alone, and trustme writes another form."""
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    parts = [key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())]
    path.write_bytes(b"".join([*parts, *(blob.bytes() for blob in issued.cert_chain_pems)]))
