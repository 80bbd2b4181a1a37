"""One certificate authority in place of those of the system, for this process and all that it starts.

Each HTTP client of obstore reads all certificates of the system when it is made: some 300 files, 4 to 7 ms of CPU.
Tests make thousands of clients and talk to servers without TLS on loopback alone, so that one authority is enough for
them. It is one of the system's: obstore makes no client without any.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path


def trust_one_authority(folder: Path) -> None:
    """Put one certificate of the system into a folder, and name it in the environment; do nothing if there is none."""
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    if found:
        certificate, no_others = folder / "authority.pem", folder / "no-authorities"
        certificate.write_text(ssl.DER_cert_to_PEM_cert(found[0]))
        no_others.mkdir()
        os.environ |= {"SSL_CERT_FILE": str(certificate), "SSL_CERT_DIR": str(no_others)}
