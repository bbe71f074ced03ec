"""Stands before the server: who may not look is refused, and browsers are told what these pages may do."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ftlaunch.views.dashboard.access import Access

TOKEN = "token"  # noqa: S105, the name of the parameter
_HEADERS = {
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"  # noqa: E501
"""of pages that bring none of their own"""
_ENTERED = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>ftlaunch dashboard</title>
<meta http-equiv="refresh" content="0;url=?{query}"></head><body><a href="?{query}">Go on</a></body></html>"""


class Guard:
    """Lets requests through to `app` that have the token: in the link at first, then in a cookie."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take one request. What is no HTTP is not answered."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        linked = dict(query).get(TOKEN)
        token = cookie_parser(headers.get("cookie", "")).get(self._access.cookie, "") if linked is None else linked
        refusal = self._access.refused(scope["method"], headers, token)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    told.setdefault(name, value)
                told.setdefault("content-security-policy", POLICY)
            await send(message)

        if refusal:
            response = PlainTextResponse(f"ftlaunch dashboard: refused: {refusal}.\n", 403)
            await response(scope, receive, sending)
        elif linked is not None:
            await self._entered(query)(scope, receive, sending)
        else:
            await self._app(scope, receive, sending)

    def _entered(self, query: list[tuple[str, str]]) -> HTMLResponse:
        """A page that goes on to the same place without the token, which then stands in the cookie alone.

        A redirect would not do: browsers send no SameSite=Strict cookie on one that began at a link of another site.
        """
        rest = urlencode([(name, value) for name, value in query if name != TOKEN])
        response = HTMLResponse(_ENTERED.format(query=rest.replace("&", "&amp;")))
        response.set_cookie(self._access.cookie, self._access.token, httponly=True, samesite="strict", path="/")
        return response
