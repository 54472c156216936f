"""The HTTP floor: hypercorn's protocol and Quart's routes on our own connections; every failure is a problem."""

from gateway.http.server.app import Account, GatewayApp, Serve
from gateway.http.server.limits import ServerLimits
from gateway.http.server.listening import bind, serve

__all__ = ["Account", "GatewayApp", "Serve", "ServerLimits", "bind", "serve"]
