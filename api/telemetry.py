"""What the operator sees: structured logs on stderr, traces, metrics, and one line per request.

Guarantees: no log line, span or label holds a raw path, a query, a body, a header or the text of an unexpected error;
a request is named by its id and its route's template. An error nobody handled is answered as 500 here, with its class
and the places it passed, never its message (which may quote a caller). Sends nothing anywhere unless an OTLP endpoint
is set. Source: OpenTelemetry HTTP semantic conventions.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Histogram, Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Tracer
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import MEDIA_TYPE, answer_of, problem_of

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
"""A caller may send any word; others are told as `_OTHER`. Source: OpenTelemetry HTTP semantic conventions."""
_SAFE = (b"x-content-type-options", b"nosniff")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Buckets of durations. Source: OpenTelemetry HTTP metrics, `http.server.request.duration`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Tracer, meter and logger of one service; each service of a process has its own, so tests do not mix."""

    tracer: Tracer
    meter: Meter
    log: Any
    tracers: TracerProvider
    meters: MeterProvider
    registry: CollectorRegistry
    requests: Histogram

    def metrics_page(self) -> tuple[bytes, str]:
        """The metrics as Prometheus reads them, and their content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def close(self) -> None:
        """Sends what waits and ends the exporters."""
        self.tracers.shutdown()
        self.meters.shutdown()


def build(*, otlp_endpoint: str | None = None, level: str = "info", stream: Any = None) -> Telemetry:
    """Returns new telemetry. Logs go to `stream` (stderr by default), spans and metrics to `otlp_endpoint` if given."""
    resource = Resource.create({"service.name": "muniment"})
    registry = CollectorRegistry()
    readers: list[MetricReader] = [PrometheusMetricReader(registry=registry)]
    tracers = TracerProvider(resource=resource)
    if otlp_endpoint:
        base = otlp_endpoint.rstrip("/")
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{base}/v1/traces")))
        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{base}/v1/metrics")))
    meters = MeterProvider(metric_readers=readers, resource=resource)
    meter = meters.get_meter("muniment")
    return Telemetry(
        tracer=tracers.get_tracer("muniment"),
        meter=meter,
        log=_logger(level, stream),
        tracers=tracers,
        meters=meters,
        registry=registry,
        requests=meter.create_histogram(
            "http.server.request.duration",
            unit="s",
            description="Time to answer",
            explicit_bucket_boundaries_advisory=_SECONDS,
        ),
    )


class _Lines:
    """Writes whole lines; where nobody can read them any more (a closed pipe, a full disk), the service goes on."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def msg(self, line: str) -> None:
        """Writes one line."""
        with self._lock, suppress(OSError, ValueError):
            self._stream.write(f"{line}\n")
            self._stream.flush()

    debug = info = warning = error = msg


def _logger(level: str, stream: Any) -> Any:
    return structlog.wrap_logger(
        _Lines(stream or sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        context_class=dict,
    )


def quiet_libraries() -> None:
    """Keeps libraries from printing what they handle: only their warnings pass, uvicorn's access log never."""
    for name in ("uvicorn.access", "botocore", "boto3", "urllib3", "alembic", "apscheduler", "httpx", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.WARNING)


class Forwarded(logging.Handler):
    """Puts what a library says about itself into our log, below its own alarm.

    A tick that is late or left out, a caller that speaks no HTTP: that is information, not a fault of the service.
    What the library holds for an error is one, by its class and without its trace, which may hold values of somebody.
    """

    def __init__(self, event: str, log: Any) -> None:
        super().__init__(logging.WARNING)
        self._event = event
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line."""
        said = {"library": record.name, "detail": record.getMessage().strip()}
        if record.levelno >= logging.ERROR:
            kind = record.exc_info[0] if record.exc_info else None
            self._log.error(self._event, **said, error=None if kind is None else kind.__qualname__)
        else:
            self._log.info(self._event, **said)


def forward(library: str, event: str, log: Any) -> Forwarded:
    """Makes a library's warnings and errors lines of our log, and of nothing else; returns the handler to remove."""
    logger = logging.getLogger(library)
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())  # so that what is said after the removal goes nowhere
    handler = Forwarded(event, log)
    logger.addHandler(handler)
    return handler


def places(error: BaseException) -> list[str]:
    """Where an error passed, as `file:line function`, without any value."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    # Some code has no file: its place is a word such as `<string>`.
    return [f"{'/'.join(frame.filename.split('/')[-2:])}:{frame.lineno} {frame.name}" for frame in frames]


class RequestLog:
    """ASGI middleware, the outermost: names the request, times it, logs it, and answers what nobody handled.

    No answer is taken by a browser for another type than it says.
    """

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes one request through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(8)
        scope["request_id"] = request_id
        started = time.perf_counter()
        status = 0

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
                message["headers"] = headers if _SAFE in headers else [*headers, _SAFE]
            await send(message)

        with self._telemetry.tracer.start_as_current_span(
            "request", kind=SpanKind.SERVER, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                await self._app(scope, receive, observed)
            except Exception as error:  # noqa: BLE001 - the last place that can still answer
                self._telemetry.log.error(  # noqa: TRY400 - without the message, see `places`
                    "fault", request_id=request_id, error=type(error).__qualname__, places=places(error)
                )
                if status == 0:
                    await _send_problem(error, request_id, observed)
            route = _template(scope)
            span.update_name(f"{_method(scope)} {route}")
            span.set_attributes({"http.route": route, "http.response.status_code": status})
        self._note(scope, route, status, time.perf_counter() - started, request_id)

    def _note(self, scope: MutableMapping[str, Any], route: str, status: int, seconds: float, request_id: str) -> None:
        labels: dict[str, str | int] = {
            "http.request.method": _method(scope),
            "http.route": route,
            "http.response.status_code": status,
        }
        self._telemetry.requests.record(seconds, labels)
        acting = scope.get("acting")
        self._telemetry.log.info(
            "request",
            request_id=request_id,
            method=_method(scope),
            route=route,
            status=status,
            ms=round(seconds * 1000, 2),
            tenant=getattr(acting, "tenant", None),
            token=getattr(acting, "token_id", None),
        )


def _method(scope: MutableMapping[str, Any]) -> str:
    method = str(scope["method"])
    return method if method in _METHODS else "_OTHER"


def _template(scope: MutableMapping[str, Any]) -> str:
    return str(getattr(scope.get("route"), "path", None) or "unknown")


async def _send_problem(error: BaseException, request_id: str, send: Send) -> None:
    answer = answer_of(problem_of(error), instance=request_id)
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
    headers += [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(answer.body)).encode())]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
