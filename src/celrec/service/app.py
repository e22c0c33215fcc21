"""The endpoints."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version as version_of
from importlib.resources import files
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from celrec.errors import CelrecError
from celrec.service import messages as m
from celrec.service.events import worded
from celrec.service.guard import ApiKey, Guard, Limits, Refusal, UnknownError
from celrec.service.listing import clusters_of, members_of, search_ids
from celrec.service.metrics import Metrics
from celrec.service.service import Service

_T = TypeVar("_T")
_PAGES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "docs": ("docs.html", "text/html; charset=utf-8"),
    "docs.js": ("docs.js", "text/javascript; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
_ABOUT = """A trained run of celrec that answers, and learns the events that it is sent.

Ids are integers or texts, as in the data. Every answer is of one version of the model."""
_WORDS = {
    404: "nothing is there; /docs names what is",
    405: "the method is not allowed there; /docs names those that are",
    400: "the body is no JSON text, or is nested too deeply",
}
_MOST_IN_ADDRESS = 50  # ids: an address must not be long; POST takes more
_LOG = logging.getLogger("celrec.service")

Side = Annotated[str, Query(max_length=200, description="items, users, or a further column.")]
Count = Annotated[int, Query(ge=1, le=1_000)]


def make_app(
    service: Service, limits: Limits, key: ApiKey | None = None, *, loopback: bool = True
) -> FastAPI:
    """All endpoints of a service, which starts and stops with the application."""
    metrics = Metrics(service)
    threads = anyio.CapacityLimiter(limits.threads)

    async def aside(work: Callable[[], _T], *, brief: bool = False) -> _T:
        """In a thread, so that the loop goes on to hear of requests.

        A brief answer is given at once: to hand it to a thread would take longer.
        """
        return work() if brief else await anyio.to_thread.run_sync(work, limiter=threads)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="celrec",
        description=_ABOUT,
        version=version_of("celrec"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=_problems(400, 405, 408, 413, 415, 421, 422),
        telemetry={"tracing": False, "metrics": False, "logs": False},  # /metrics tells it all
    )
    app.add_middleware(Guard, limits=limits, key=key, loopback=loopback, answered=metrics.answered)
    _tell_problems(app)

    @app.post(
        "/events",
        response_model=m.Accepted,
        responses=_problems(401, 409, 503, 507),
        status_code=202,
        openapi_extra={"security": [{"key": []}]},  # the guard sees to it, before the body comes
    )
    async def events(batch: m.EventBatch) -> Response:
        """Take events. They are on the disk when the answer comes, and learned within a second."""
        accepted = await service.take(batch.events)
        metrics.events.inc(accepted.accepted)
        return _written(accepted, status=202)

    @app.post("/score")
    async def score(batch: m.PairBatch) -> m.Scores:
        """What is predicted for each pair of a user and an item."""
        version = service.current
        return await aside(lambda: version.score(batch.pairs))

    @app.get("/recommend", response_model=m.Recommended)
    async def recommend(
        user: Annotated[m.Text, Query()],
        k: Annotated[m.Many, Query()] = 10,
        with_seen: bool = False,
        allowed: Annotated[list[m.Text] | None, Query(max_length=_MOST_IN_ADDRESS)] = None,
        banned: Annotated[list[m.Text] | None, Query(max_length=_MOST_IN_ADDRESS)] = None,
    ) -> Response:
        """The best items for a user, without those that the user has seen."""
        version = service.current
        wanted = m.Wanted.model_construct(
            users=[user], k=k, with_seen=with_seen, allowed=allowed, banned=banned
        )
        brief = version.brief and not (allowed or banned)
        told = await aside(lambda: version.recommend(wanted), brief=brief)
        return _written(told.users[0])

    @app.post("/recommend", response_model=m.RecommendedToMany)
    async def recommend_to_many(wanted: m.Wanted) -> Response:
        """The best items for several users."""
        version = service.current
        return await aside(lambda: _written(version.recommend(wanted)))

    @app.get("/similar", responses=_problems(404))
    async def similar(
        item: Annotated[m.Text, Query()], k: Annotated[m.Many, Query()] = 10
    ) -> m.Similar:
        """The items that are most like another: of its cluster, then of the nearest ones."""
        version = service.current
        return await aside(lambda: version.similar(item, k))

    @app.get("/explain", responses=_problems(404))
    async def explain(
        item: Annotated[m.Text, Query()],
        user: Annotated[m.Text | None, Query()] = None,
        neighbours: Annotated[int, Query(ge=0, le=100)] = 5,
    ) -> m.Why:
        """Why an item is where it is, and what a user has to do with it."""
        version = service.current
        return await aside(lambda: version.explain(item, user, neighbours))

    @app.get("/clusters", responses=_problems(404))
    async def clusters(side: Side = "items") -> m.Clusters:
        """All clusters, the best rated first, with their most active members."""
        version = service.current
        return await aside(lambda: clusters_of(version, side))

    @app.get("/clusters/{cluster}", responses=_problems(404))
    async def cluster(
        cluster: Annotated[int, Path(ge=0, lt=2**31)],
        side: Side = "items",
        start: Annotated[int, Query(ge=0, lt=2**31)] = 0,
        count: Count = 50,
    ) -> m.Members:
        """Members of a cluster, the most active first, a page at a time."""
        version = service.current
        return await aside(lambda: members_of(version, side, cluster, start, count))

    @app.get("/search", responses=_problems(404))
    async def search(
        side: Side = "items",
        text: Annotated[str, Query(max_length=200)] = "",
        count: Annotated[int, Query(ge=1, le=100)] = 10,
    ) -> m.Found:
        """Ids whose id or title holds a text, the most active first; all if it is empty."""
        version = service.current
        return await aside(lambda: search_ids(version, side, text, count))

    @app.get("/healthz")
    async def healthz() -> m.Health:
        """Whether the service is well, and which version of the model answers."""
        return service.health(needs_key=key is not None)

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def tell_metrics() -> Response:
        """For Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    for name, (file, kind) in _PAGES.items():
        app.get(f"/{name}", include_in_schema=False)(_page(file, kind))
    schema = app.openapi()  # kept by the application
    schema["components"]["securitySchemes"] = {
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    }
    return app


def _written(answer: BaseModel, status: int = 200) -> Response:
    """An answer that is known to be as declared, and need not be looked at again."""
    return Response(answer.model_dump_json(), status, media_type="application/json")


def _page(file: str, kind: str) -> Callable[[], Any]:
    content = (files("celrec.service") / "page" / file).read_bytes()

    async def page() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return page


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": m.Problem} for status in statuses}


def _tell_problems(app: FastAPI) -> None:
    """One line for whatever goes wrong, always of the same shape."""

    @app.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> JSONResponse:
        return _told(refusal.status, refusal.why)

    @app.exception_handler(CelrecError)
    async def mistaken(_: Request, error: CelrecError) -> JSONResponse:
        return _told(404 if isinstance(error, UnknownError) else 422, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return _told(422, worded(error.errors()))

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> JSONResponse:
        answer = _told(error.status_code, _WORDS.get(error.status_code, str(error.detail)))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        _LOG.error("%s %s", request.method, request.url.path, exc_info=error)
        return _told(
            500, f"internal error, {type(error).__name__}; the log of the service has more"
        )


def _told(status: int, line: str) -> JSONResponse:
    # What users sent may be no Unicode text, and is escaped by repr and by JSON.
    text = " ".join(line.split())
    return JSONResponse({"error": text.encode("utf-8", "replace").decode()}, status)
