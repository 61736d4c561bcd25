"""The role and the queues that the token of a request allows."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response

from fdbqueue.http.responses import json_response
from fdbqueue.http.security import grant_of
from fdbqueue.http.v1 import bodies
from fdbqueue.http.v1.parameters import known_parameters

router = APIRouter(responses=bodies.PROBLEMS, dependencies=[Depends(known_parameters)])


@router.get("/me", response_model=bodies.Me)
async def me(request: Request) -> Response:
    """Return the role of the request's token, and the queues that it allows.

    Without tokens every request has the role `admin`.
    """
    grant = grant_of(request)
    if grant is None:
        return json_response({"role": "admin", "queues": "*"})
    return json_response({"role": grant.role, "queues": grant.queues})
