"""ASGI middleware before the dashboard's server: refuses requests without access, and adds security headers."""

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
"""content security policy of responses that set none"""
_ENTERED = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>ftlaunch dashboard</title>
<meta http-equiv="refresh" content="0;url=?{query}"></head><body><a href="?{query}">Go on</a></body></html>"""


class Guard:
    """Passes requests on to `app` that have the token: at first in the link, later in a cookie."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Anything but HTTP, such as a websocket, gets no answer."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        linked = dict(query).get(TOKEN)
        token = cookie_parser(headers.get("cookie", "")).get(self._access.cookie, "") if linked is None else linked
        refusal = self._access.refused(scope["method"], headers, token)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                response_headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    response_headers.setdefault(name, value)
                response_headers.setdefault("content-security-policy", POLICY)
            await send(message)

        if refusal:
            response = PlainTextResponse(f"ftlaunch dashboard: refused: {refusal}.\n", 403)
            await response(scope, receive, sending)
        elif linked is not None:
            await self._entered(query)(scope, receive, sending)
        else:
            await self._app(scope, receive, sending)

    def _entered(self, query: list[tuple[str, str]]) -> HTMLResponse:
        """Return a page that sets the cookie and loads the same address without the token.

        A redirect would not do: browsers send no SameSite=Strict cookie with a redirect that began at a link of
        another site.
        """
        rest = urlencode([(name, value) for name, value in query if name != TOKEN])
        response = HTMLResponse(_ENTERED.format(query=rest.replace("&", "&amp;")))
        response.set_cookie(self._access.cookie, self._access.token, httponly=True, samesite="strict", path="/")
        return response
