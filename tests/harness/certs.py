"""A certificate authority for one run, by the openssl command (OpenSSL 3)."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

DAYS = "30"


class Authority:
    """`ca.crt` and `ca.key` in `folder`, and what they sign."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self.key = folder / "ca.key"
        extensions = ("basicConstraints=critical,CA:true", "keyUsage=critical,digitalSignature,keyCertSign")
        _certificate(self.certificate, self.key, "/CN=paceline-test", extensions)

    def serving(self, name: str, addresses: Sequence[str], names: Sequence[str]) -> tuple[Path, Path]:
        """Certificate and key of a server reached by these IP addresses and DNS names."""
        alternatives = [f"IP:{address}" for address in addresses] + [f"DNS:{each}" for each in names]
        extensions = ("extendedKeyUsage=serverAuth", f"subjectAltName={','.join(alternatives)}")
        return self._issue(name, f"/CN={name}", extensions)

    def client(self, name: str, *, group: str) -> tuple[Path, Path]:
        """Certificate and key of user `name` in `group`."""
        return self._issue(name, f"/O={group}/CN={name}", ("extendedKeyUsage=clientAuth",))

    def _issue(self, name: str, subject: str, extensions: Sequence[str]) -> tuple[Path, Path]:
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        common = ("basicConstraints=critical,CA:false", "keyUsage=critical,digitalSignature")
        signer = ("-CA", str(self.certificate), "-CAkey", str(self.key))
        _certificate(certificate, key, subject, [*common, *extensions], signer)
        return certificate, key


def key_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """(private, public) PEM files of a new P-256 key."""
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(private))
    _openssl("pkey", "-in", str(private), "-pubout", "-out", str(public))
    return private, public


def _certificate(
    certificate: Path, key: Path, subject: str, extensions: Sequence[str], signer: Sequence[str] = ()
) -> None:
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(key))
    added = [argument for extension in extensions for argument in ("-addext", extension)]
    _openssl("req", "-x509", *new_key, *signer, "-subj", subject, "-days", DAYS, "-out", str(certificate), *added)


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"openssl {' '.join(arguments)} failed with status {done.returncode}: {done.stderr.strip()}")
