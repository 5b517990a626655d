"""Certificates that are renewed while the server runs."""

from __future__ import annotations

import contextlib
import os
import stat
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from OpenSSL import SSL
from twisted.internet.task import Clock

from mailsvc import wiring
from mailsvc.settings.reader import SettingsError
from mailsvc.settings.schema import Smtp
from mailsvc.smtp.server.certificates import Certificates, self_signed


def names(connection: SSL.Connection, context: SSL.Context | None = None) -> str:
    """Whom the certificate names: the handshake in memory."""
    client = SSL.Connection(context or SSL.Context(SSL.TLS_CLIENT_METHOD), None)
    client.set_connect_state()
    connection.set_accept_state()
    for _ in range(6):
        for one, other in ((client, connection), (connection, client)):
            with contextlib.suppress(SSL.WantReadError):
                one.do_handshake()
            with contextlib.suppress(SSL.WantReadError):
                other.bio_write(one.bio_read(65536))
    certificate = client.get_peer_certificate(as_cryptography=True)
    return certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value


def replace(folder: Path, name: str) -> None:
    """As certbot does: another file in the place of the old one."""
    for old, new in zip(self_signed(folder, "unused"), self_signed(folder / name, name), strict=True):
        os.replace(new, old)


def test_new_connections_use_a_renewed_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    certificates = Certificates(*self_signed(tmp_path, "old.example"), clock.seconds)
    before, expiry = certificates.serverConnectionForTLS(None), certificates.expires_at
    monkeypatch.setattr("mailsvc.smtp.server.certificates._LIFETIME", timedelta(days=10))
    replace(tmp_path, "new.example")
    assert certificates.expires_at == expiry
    clock.advance(11)
    assert certificates.expires_at < expiry, "the renewed one, although nobody has connected"
    assert names(certificates.serverConnectionForTLS(None)) == "new.example"
    assert names(before) == "old.example"


@pytest.mark.parametrize(("ciphers", "taken"), [(b"ECDHE+AESGCM", True), (b"AES256-SHA256", False), (b"ECDHE-ECDSA-AES256-SHA384", False)])
def test_old_ciphers_are_refused(tmp_path: Path, ciphers: bytes, taken: bool) -> None:
    connection = Certificates(*self_signed(tmp_path, "mx.example"), lambda: 0.0).serverConnectionForTLS(None)
    old = SSL.Context(SSL.TLS_CLIENT_METHOD)
    old.set_max_proto_version(SSL.TLS1_2_VERSION)
    old.set_cipher_list(ciphers)
    if taken:
        assert names(connection, old) == "mx.example"
    else:
        with pytest.raises(SSL.Error):
            names(connection, old)


def test_an_incomplete_pair_is_ignored(tmp_path: Path) -> None:
    clock = Clock()
    certificate, key = self_signed(tmp_path, "old.example")
    certificates = Certificates(certificate, key, clock.seconds)
    other, other_key = self_signed(tmp_path / "other", "new.example")
    os.replace(other, certificate)
    clock.advance(11)
    assert names(certificates.serverConnectionForTLS(None)) == "old.example"
    key.unlink()
    clock.advance(11)
    assert names(certificates.serverConnectionForTLS(None)) == "old.example"
    os.replace(other_key, key)
    clock.advance(11)
    assert names(certificates.serverConnectionForTLS(None)) == "new.example"


def test_a_renewed_key_with_a_password_is_ignored(tmp_path: Path) -> None:
    clock = Clock()
    certificate, key = self_signed(tmp_path, "old.example")
    certificates = Certificates(certificate, key, clock.seconds)
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    encrypted = serialization.BestAvailableEncryption(b"secret")
    key.write_bytes(private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encrypted))
    clock.advance(11)
    assert names(certificates.serverConnectionForTLS(None)) == "old.example"


def test_a_pair_that_cannot_be_used_is_an_error_of_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"smtp\.self_signed is .*file, where no certificate can be stored: File exists"):
        wiring.certificates(Smtp(self_signed=tmp_path / "file"), "mx.example", lambda: 0.0)
    with pytest.raises(SettingsError, match="cannot be used with the key"):
        wiring.certificates(Smtp(certbot=tmp_path), "mx.example", lambda: 0.0)


def test_the_first_pair_must_be_valid(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "old.example")
    certificate.write_text("nothing")
    with pytest.raises(ValueError):
        Certificates(certificate, key, lambda: 0.0)


def test_a_generated_key_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path / "tls", "mx.example")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert self_signed(tmp_path / "tls", "other.example") == (certificate, key)
