# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""TLS 1.3 for the rendezvous, with the files and the rules of the connections for data.

Both ends show a certificate of the job's authority; names in certificates are compared with
nothing (native/transport/tcp/tls.h). On top of that, the proofs of the token cover the
fingerprints of both certificates: whoever sits in between needs the key of the very certificate
that the other end sees, and not merely some certificate of that authority. TLS 1.3 has no
channel binding that Python 3.11 could ask for ("tls-unique" ends with TLS 1.2); as TLS makes each
end prove that it has the key of its certificate, the certificates do the same service.
"""

import hashlib
import re
import socket
import ssl
from pathlib import Path

from smdistributed._common.errors import ConfigurationError
from smdistributed.collectives import _native

__all__ = ["RECORD_MARK", "RendezvousTls", "why_refused"]

# The first byte of whatever opens a TLS connection (RFC 8446, section 5.1: handshake).
RECORD_MARK = b"\x16"

_CERTIFICATE = re.compile(
    r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL | re.ASCII
)


class RendezvousTls:
    """What one rank needs to speak TLS at the rendezvous.

    Args:
        files: paths of this rank's certificate, its key, and the authority's certificate (PEM).

    Raises:
        ConfigurationError: the files cannot be read, do not belong together, or hold a
            certificate that the other ranks would refuse.

    Thread rule: any thread.
    """

    def __init__(self, files: tuple[str, str, str]) -> None:
        # The engine says best what is wrong with them: it has to be said for data, too.
        _native.check_tls_files(*files)
        self._own_digest = hashlib.sha256(_first_certificate(files[0])).digest()
        self._accepting = _context(ssl.PROTOCOL_TLS_SERVER, files)
        self._accepting.num_tickets = 0  # nobody resumes
        self._opening = _context(ssl.PROTOCOL_TLS_CLIENT, files)

    def accept(self, connection: socket.socket) -> ssl.SSLSocket:
        """Wraps a connection that was accepted. Its handshake is yet to be done."""
        return self._accepting.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )

    def connect(self, connection: socket.socket) -> ssl.SSLSocket:
        """Wraps a connection that was opened. Its handshake is yet to be done."""
        return self._opening.wrap_socket(connection, do_handshake_on_connect=False)

    def binding(self, connection: ssl.SSLSocket) -> bytes:
        """Returns what the proofs of the token have to cover: both fingerprints, acceptor first."""
        certificate = connection.getpeercert(binary_form=True)
        assert certificate is not None, "a peer without a certificate has passed the handshake"
        peer_digest = hashlib.sha256(certificate).digest()
        if connection.server_side:
            return self._own_digest + peer_digest
        return peer_digest + self._own_digest


def why_refused(error: ssl.SSLError) -> str:
    """Returns what a failed handshake means and what was expected: "it ...; expected ..."."""
    reason = (error.reason or type(error).__name__).replace("_", " ").lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"it showed a certificate that is not valid here ({error.verify_message}); expected "
            "one signed by SMDDP_TLS_CA and not expired. Give all ranks certificates of one "
            "authority, see docs/security.md"
        )
    if "alert" in reason:
        return (
            f"it refused the certificate of this rank ({reason}); expected it to accept "
            "SMDDP_TLS_CERT. Give all ranks the same SMDDP_TLS_CA, and check the clocks of both "
            "hosts"
        )
    return (
        f"it does not speak TLS 1.3 as this rank does ({reason}); expected TLS on all ranks. Set "
        "SMDDP_TLS_CERT, _KEY and _CA on all ranks, or on none"
    )


def _context(protocol: int, files: tuple[str, str, str]) -> ssl.SSLContext:
    certificate, key, authority = files
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        # A key with a password is refused; OpenSSL would ask for it on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: b"")
        context.load_verify_locations(authority)
    except OSError as error:
        raise ConfigurationError(
            f"SMDDP_TLS_CERT={certificate}, SMDDP_TLS_KEY and SMDDP_TLS_CA={authority} cannot be "
            f"used ({error}); expected PEM files that stay in place while the job starts. Correct "
            "the paths, or make them again, see docs/security.md."
        ) from error
    return context


def _first_certificate(path: str) -> bytes:
    """Returns the rank's own certificate (DER): others may follow it, up to the authority."""
    found = _CERTIFICATE.search(Path(path).read_text(encoding="utf-8", errors="replace"))
    if found is None:
        raise ConfigurationError(
            f"SMDDP_TLS_CERT={path} has no block 'BEGIN CERTIFICATE'; expected a certificate in "
            "PEM form. Make one, see docs/security.md."
        )
    return ssl.PEM_cert_to_DER_cert(found.group())
