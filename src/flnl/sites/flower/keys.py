"""Makes the keys and certificates of a federation, of NIST's curves: P-256 for TLS, P-384 for SuperNodes.

    python keys.py authority FOLDER              ca.key ca.crt
    python keys.py server FOLDER HOST ...        server.key server.crt, signed by FOLDER's authority
    python keys.py node FOLDER                   node node.pub

Nothing that is there is replaced.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

YEARS = 5
"""How long certificates hold."""


def authority(folder: Path) -> None:
    """Make a certificate authority that signs one kind of certificate, servers'."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named("flnl federation")
    made = (
        _begun(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(folder / "ca.key", _private(key), 0o600)
    _write(folder / "ca.crt", made.public_bytes(Encoding.PEM), 0o644)


def server(folder: Path, hosts: list[str]) -> None:
    """Make the server's certificate for these host names and addresses."""
    signing = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    issuer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    made = (
        _begun(_named(hosts[0]), issuer.subject, key.public_key())
        .add_extension(x509.SubjectAlternativeName([_host(one) for one in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .sign(signing, hashes.SHA256())
    )
    _write(folder / "server.key", _private(key), 0o600)
    _write(folder / "server.crt", made.public_bytes(Encoding.PEM), 0o644)


def node(folder: Path) -> None:
    """Make a SuperNode's key pair."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write(folder / "node", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), 0o600)
    _write(folder / "node.pub", key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n", 0o644)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(written: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(written))
    except ValueError:
        return x509.DNSName(written)


def _begun(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer, name, key, x509.random_serial_number(), now - timedelta(hours=1), now + timedelta(days=365 * YEARS)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    made: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made


def _write(path: Path, data: bytes, mode: int) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(opened, "wb") as file:
        file.write(data)


if __name__ == "__main__":
    what, folder, *more = sys.argv[1:]
    if what == "authority":
        authority(Path(folder))
    elif what == "server":
        server(Path(folder), more)
    elif what == "node":
        node(Path(folder))
    else:
        sys.exit(f"{what} is none of authority, server, node")
