"""What all tests share: real services on demand, the design folder, and no way out to the network.

Services start lazily, once per pytest process, each in a folder of its own, and die with the process.
"""

import contextlib
import gc
import importlib
import ipaddress
import itertools
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import settings as hypothesis_settings

from infra.services import postgres
from tests import schema

REPOSITORY = Path(__file__).resolve().parents[1]

# `make test` tries a sample of each property, `make test-all` all of it. No deadline: a loaded machine is no fault.
hypothesis_settings.register_profile("sample", max_examples=20, deadline=None)
hypothesis_settings.register_profile("full", max_examples=200, deadline=None)
hypothesis_settings.load_profile("full" if os.environ.get("MUNIMENT_TEST_FULL") == "1" else "sample")

_FOLDERS = frozenset({"tmp_path", "tmp_path_factory"})
MEMORY_FOLDER = Path("/dev/shm")
MEMORY_NEEDED = 6 << 30


def _room_in_memory() -> bool:
    """Tell whether temporary files fit in memory: making a small file is a hundred times as quick there."""
    try:
        about = os.statvfs(MEMORY_FOLDER)
    except OSError:
        return False
    return not about.f_flag & os.ST_NOEXEC and about.f_bavail * about.f_frsize >= MEMORY_NEEDED


# What a kill -9 leaves is the same on every file system. `TMPDIR=/somewhere make test` runs on a disk of your choice.
if "TMPDIR" not in os.environ and _room_in_memory():
    os.environ["TMPDIR"] = str(MEMORY_FOLDER)
    tempfile.tempdir = None


_ONE_OF_ON_POSTGRESQL = {"api": 6, "retention": 8}
"""Of the tests of these folders `make test` runs on PostgreSQL one of so many, always the same; `make test-all` all."""
_WHOLE_ON_POSTGRESQL = frozenset(
    {
        "test_api_audit.py",
        "test_api_idempotency.py",
        "test_api_migrations.py",
        "test_api_problems.py",
        "test_api_query.py",
    }
)
_LONGEST_FIRST = ("process", "connectors", "erasure", "retention")


def _rank(item: pytest.Item) -> int:
    area = item.path.parent.name
    return _LONGEST_FIRST.index(area) if area in _LONGEST_FIRST else len(_LONGEST_FIRST)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what lasts long first, so that several workers end together, and leave some of it to `make test-all`.

    What asks for a folder is marked `files`: `make test-unit` leaves it out.
    """
    items.sort(key=_rank)
    for item in items:
        one_of = _ONE_OF_ON_POSTGRESQL.get(item.path.parent.name, 1)
        on_postgres = "[postgres" in item.name and item.path.name not in _WHOLE_ON_POSTGRESQL
        if on_postgres and crc32(item.name.encode()) % one_of:
            item.add_marker(pytest.mark.slow)
        if not _FOLDERS.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.files)


def pytest_collection_finish() -> None:
    """Share what is compiled, and keep the collector of cycles from walking every imported module again and again.

    Each took a sixth of the suite's time or more.
    """
    schema.share_compiled_statements()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


class OuterNetworkRefused(OSError):
    """A test tried to leave the machine."""


def _is_local(address: object) -> bool:
    if not isinstance(address, tuple):
        return True  # a Unix socket's path
    host = address[0]
    if host in ("", "localhost", b"localhost"):
        return True
    try:
        parsed = ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return False
    return parsed.is_loopback or parsed.is_unspecified


@pytest.fixture(scope="session", autouse=True)
def no_outer_network() -> Iterator[None]:
    """Refuses every connection and look-up that would leave the machine; loopback and Unix sockets pass."""
    patch = pytest.MonkeyPatch()
    real_connect, real_connect_ex, real_look_up = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def connect(self: socket.socket, address: Any) -> None:
        if not _is_local(address):
            message = f"a test tried to connect to {address!r}"
            raise OuterNetworkRefused(message)
        real_connect(self, address)

    def connect_ex(self: socket.socket, address: Any) -> int:
        if not _is_local(address):
            message = f"a test tried to connect to {address!r}"
            raise OuterNetworkRefused(message)
        return real_connect_ex(self, address)

    def look_up(host: Any, *arguments: Any, **keywords: Any) -> Any:
        if host is not None and not _is_local((host,)) and not _is_address(host):
            raise socket.gaierror(socket.EAI_NONAME, f"tests resolve no outer names, asked for {host!r}")
        return real_look_up(host, *arguments, **keywords)

    patch.setattr(socket.socket, "connect", connect)
    patch.setattr(socket.socket, "connect_ex", connect_ex)
    patch.setattr(socket, "getaddrinfo", look_up)
    yield
    patch.undo()


def _is_address(host: object) -> bool:
    text = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host)
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


@contextlib.contextmanager
def _service_folder(name: str) -> Iterator[Path]:
    """Yields a folder outside pytest's own, whose parents only root may enter, while PostgreSQL refuses to be root."""
    folder = Path(tempfile.mkdtemp(prefix=f"muniment-{name}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Yields the superuser's URL of a PostgreSQL server that belongs to this pytest process."""
    with _service_folder("postgres") as folder, postgres.running(folder) as url:
        yield url


@pytest.fixture(scope="session")
def make_postgres_database(postgres_url: str) -> Callable[..., str]:
    """Returns `make(prepare=None) -> url`: a fresh database, copied from one that `prepare(url)` filled once."""
    numbers = itertools.count(1)
    templates: dict[Callable[[str], None], str] = {}

    def make(prepare: Callable[[str], None] | None = None) -> str:
        template = "template1"
        if prepare is not None:
            if prepare not in templates:
                name = f"prepared_{len(templates) + 1}"
                prepare(postgres.create_database(postgres_url, name))
                templates[prepare] = name
            template = templates[prepare]
        return postgres.create_database(postgres_url, f"test_{next(numbers)}", template=template)

    return make


@pytest.fixture
def postgres_database(postgres_url: str, make_postgres_database: Callable[..., str]) -> Iterator[str]:
    """Yields the URL of an empty database for one test; dropped after it, with every connection to it."""
    url = make_postgres_database()
    yield url
    postgres.drop_database(postgres_url, url.rpartition("/")[2])


@pytest.fixture(scope="session")
def s3_service() -> Iterator[Any]:
    """Yields a running S3 with Object Lock: `endpoint`, `access_key`, `secret_key`."""
    seaweedfs = importlib.import_module("infra.services.seaweedfs")
    with _service_folder("s3") as folder, seaweedfs.running(folder) as service:
        yield service


def _connections() -> dict[str, int]:
    """The TCP connections that this process has open, with the port of the other end; none where no Linux tells."""
    if not Path("/proc/self/net/tcp").exists():
        return {}
    mine = set()
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            mine.add(str(each.readlink()))
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    found = {f"socket:[{row[9]}]": int(row[2].rpartition(":")[2], 16) for row in rows}
    return {socket: port for socket, port in found.items() if port and socket in mine}


@pytest.fixture(scope="module", autouse=True)
def connections_are_closed() -> Iterator[None]:
    """Who makes a client closes it: one that is left open is told of in some other test, which has none."""
    before = _connections()
    yield
    end = time.monotonic() + 5  # threads that relay bytes close what they hold a moment later
    while left := {port for socket, port in _connections().items() if socket not in before}:
        assert time.monotonic() < end, f"connections to ports {left} are open after the module's last test"
        gc.collect()  # a pool that was given up closes what is in it; what nobody closes warns, and fails here
        time.sleep(0.05)


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """Returns the folder of design documents beside the checkout.

    Where it is missing the test is skipped with that reason; under CI it fails, so that a green run means it ran.
    """
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        reason = f"the design documents are not beside the checkout ({folder.name}/ is missing)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def full_length() -> bool:
    """Returns whether long tests run whole (`make test-all`) or sampled."""
    return os.environ.get("MUNIMENT_TEST_FULL") == "1"
