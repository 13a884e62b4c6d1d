"""RFC 3161 time stamps: a real authority made with `openssl ts`, and whatever else may come back from one."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ledger.anchors import ANCHORED, FAILING, UNANCHORED, parse_anchors, statement, told
from ledger.errors import AnchorUnavailable, BadSignature, MalformedAnchor
from ledger.timestamps import parse_timestamp, query, stamp
from ledger.tokens import check_answer
from tests.ledger.test_ledger_anchors import LOG_ID, NOW, TENANT, Bench

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
_CONFIG = """
[tsa]
default_tsa = one
[one]
serial = {folder}/serial
default_policy = 1.2.3.4.1
digests = sha256, sha384, sha512
signer_digest = sha256
accuracy = secs:1
ess_cert_id_alg = sha256
"""


@dataclass
class Authority:
    """A time stamp authority: an issuer, a signer, and a server that answers with `openssl ts -reply`."""

    folder: Path
    issuer: x509.Certificate
    signer: x509.Certificate
    url: str = ""
    answer: bytes | None = None

    def reply(self, body: bytes) -> bytes:
        asked = self.folder / "query"
        asked.write_bytes(body)
        made = subprocess.run(
            ["openssl", "ts", "-reply", "-queryfile", str(asked), "-config", str(self.folder / "conf"),
             "-signer", str(self.folder / "signer.pem"), "-inkey", str(self.folder / "signer.key"),
             "-chain", str(self.folder / "issuer.pem")],
            check=True,
            capture_output=True,
        )  # fmt: skip
        return made.stdout

    def anchor(self, certificate: x509.Certificate) -> str:
        return f"tsa+{self.url}/stamp#{certificate.fingerprint(hashes.SHA256()).hex()}"


def issue(
    name: str,
    key: PrivateKey,
    *,
    by: tuple[x509.Certificate, PrivateKey] | None = None,
    days: int = 30,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if by is None else by[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=60))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
    )
    if by is not None:
        made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), critical=True)
    return made.sign(key if by is None else by[1], hashes.SHA256())


def authority_in(folder: Path, key: PrivateKey, *, days: int = 30) -> Authority:
    folder.mkdir()
    issuer_key = ec.generate_private_key(ec.SECP256R1())
    issuer = issue("issuer", issuer_key)
    signer = issue("signer", key, by=(issuer, issuer_key), days=days)
    (folder / "issuer.pem").write_bytes(issuer.public_bytes(Encoding.PEM))
    (folder / "signer.pem").write_bytes(signer.public_bytes(Encoding.PEM))
    (folder / "signer.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / "conf").write_text(_CONFIG.format(folder=folder))
    (folder / "serial").write_text("01\n")
    return Authority(folder=folder, issuer=issuer, signer=signer)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, which plays the time stamp authority")
    made = authority_in(tmp_path_factory.mktemp("tsa") / "one", rsa.generate_private_key(65537, 2048))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            good = self.headers["Content-Type"] == "application/timestamp-query"
            answer = made.answer if made.answer is not None else made.reply(body)
            self.send_response(200 if good else 415)
            self.send_header("Content-Type", "application/timestamp-reply")
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield made
    server.shutdown()
    server.server_close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.engine.dispose()


def test_each_newest_checkpoint_is_stamped_stored_once_and_checked_by_openssl_too(
    bench: Bench, authority: Authority, tmp_path: Path
) -> None:
    for pinned in (authority.issuer, authority.signer):
        bench.anchor_at([authority.anchor(pinned)])
        note = bench.grow(3)
        (state,) = bench.anchoring.offer(TENANT, NOW)
        assert (state.state, state.kind) == (ANCHORED, "timestamp"), state
        assert state.at is not None
        assert abs(datetime.fromisoformat(state.at) - datetime.now(UTC)) < timedelta(minutes=2)
        prefix = f"{LOG_ID}/anchor/{state.size:020d}-{pinned.fingerprint(hashes.SHA256()).hex()[:16]}"
        (key,) = bench.locked.list(prefix)
        answer = bench.locked.get(key)
        assert key == f"{prefix}-{sha256(answer).hexdigest()[:16]}.tsr"
        assert bench.locked.head(key).locked_until is not None
        check_answer(answer, note, pinned.fingerprint(hashes.SHA256()))
        (tmp_path / "note").write_bytes(note)
        (tmp_path / "answer").write_bytes(answer)
        checked = subprocess.run(
            ["openssl", "ts", "-verify", "-data", str(tmp_path / "note"), "-in", str(tmp_path / "answer"),
             "-CAfile", str(authority.folder / "issuer.pem")],
            check=False,
            capture_output=True,
            text=True,
        )  # fmt: skip
        assert checked.returncode == 0, checked.stderr


def test_a_time_stamp_alone_still_reads_unanchored_and_is_told_beside_it(bench: Bench, authority: Authority) -> None:
    bench.anchor_at([authority.anchor(authority.issuer)])
    bench.grow(2)
    states = bench.anchoring.offer(TENANT, NOW)
    assert statement(states) == UNANCHORED
    assert told(states).startswith(f"{UNANCHORED}; time stamped: tsa+http://127.0.0.1")
    assert "the first 2 entries" in told(states)


def test_an_authority_that_is_away_or_answers_nonsense_fails_and_stops_nothing(
    bench: Bench, authority: Authority
) -> None:
    bench.anchor_at([authority.anchor(authority.issuer), "tsa+http://127.0.0.1:9/x#" + "ab" * 32])
    bench.grow(1)
    authority.answer = b"0\x03\x02\x01\x02"
    try:
        states = bench.anchoring.offer(TENANT, NOW)
    finally:
        authority.answer = None
    assert [state.state for state in states] == [FAILING, FAILING]
    assert "no time stamp by the pinned certificate" in states[0].detail
    assert list(bench.locked.list(f"{LOG_ID}/anchor/")) == []
    assert bench.anchoring.offer(TENANT, NOW)[0].state == ANCHORED


def test_a_token_by_another_authority_over_other_bytes_or_for_another_question_is_refused(
    authority: Authority, tmp_path: Path
) -> None:
    pinned = authority.issuer.fingerprint(hashes.SHA256())
    answer = authority.reply(query(b"these bytes", 7))
    check_answer(answer, b"these bytes", pinned, nonce=7)
    for data, fingerprint, nonce, reason in (
        (b"other bytes", pinned, 7, "other bytes"),
        (b"these bytes", bytes(32), 7, "pinned"),
        (b"these bytes", pinned, 8, "nonce"),
    ):
        with pytest.raises(BadSignature, match=reason):
            check_answer(answer, data, fingerprint, nonce=nonce)
    refusal = authority.reply(query(b"x", 1)[:20])
    with pytest.raises(BadSignature):
        check_answer(refusal, b"x", pinned)
    other = authority_in(tmp_path / "other", ec.generate_private_key(ec.SECP384R1()))
    with pytest.raises(BadSignature, match="pinned"):
        check_answer(other.reply(query(b"these bytes", 7)), b"these bytes", pinned, nonce=7)
    good = other.issuer.fingerprint(hashes.SHA256())
    check_answer(other.reply(query(b"these bytes", 7)), b"these bytes", good, nonce=7)


def test_no_changed_byte_of_a_token_passes_for_another_time_or_other_bytes(
    authority: Authority, full_length: bool
) -> None:
    """A change is refused by name, or it lies where nothing is said: a status text, a certificate nobody needs."""
    pinned = authority.signer.fingerprint(hashes.SHA256())
    answer = authority.reply(query(b"these bytes", 7))
    at = check_answer(answer, b"these bytes", pinned, nonce=7)
    chance = random.Random(20261130)
    # The bytes of a certificate's version: any other value once escaped as an exception of the library.
    versions = [found.start() + 4 for found in re.finditer(re.escape(b"\xa0\x03\x02\x01\x02"), answer)]
    assert len(versions) == 2
    places = list(range(len(answer))) if full_length else versions + chance.sample(range(len(answer)), 100)
    for place in places:
        changed = bytearray(answer)
        changed[place] ^= chance.randrange(1, 256)
        with contextlib.suppress(BadSignature):
            assert check_answer(bytes(changed), b"these bytes", pinned, nonce=7) == at


@pytest.mark.parametrize(
    "item",
    [
        "tsa+http://host/x",
        "tsa+http://host/x#abc",
        "tsa+ftp://host/x#" + "ab" * 32,
        "tsa+http://user@host/x#" + "ab" * 32,
        "tsa+http://host/x?y#" + "ab" * 32,
        "tsa+http://host:99999/x#" + "ab" * 32,
    ],
)
def test_what_names_no_authority_is_refused_at_the_start(item: str) -> None:
    with pytest.raises(MalformedAnchor):
        parse_anchors([item])


def test_a_certificate_that_was_not_valid_then_and_nonsense_stamp_nothing(authority: Authority, tmp_path: Path) -> None:
    over = authority_in(tmp_path / "over", ec.generate_private_key(ec.SECP256R1()), days=-1)
    with pytest.raises(BadSignature, match="not valid then"):
        check_answer(over.reply(query(b"x", 1)), b"x", over.issuer.fingerprint(hashes.SHA256()))
    pinned = authority.issuer.fingerprint(hashes.SHA256())
    for nonsense in (b"", b"\x30", b"\x30\x80\x00\x00", b"0" * 5_000, authority.signer.public_bytes(Encoding.DER)):
        with pytest.raises(BadSignature):
            check_answer(nonsense, b"x", pinned)
    address = parse_timestamp(authority.anchor(authority.issuer))
    authority.answer = b""
    try:
        with pytest.raises(AnchorUnavailable):
            stamp(address, b"x")
    finally:
        authority.answer = None
    assert stamp(address, b"x").at.tzinfo is not None
