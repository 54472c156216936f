"""The peer of the 402 benchmark: the x402 SDK's own middleware on FastAPI, one uvicorn worker.

Arguments: the port, the facilitator's URL, the payee.
"""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI
from x402.http import FacilitatorConfig, HTTPFacilitatorClient, PaymentOption
from x402.http.middleware.fastapi import payment_middleware
from x402.http.types import RouteConfig
from x402.mechanisms.evm.exact import ExactEvmServerScheme
from x402.server import x402ResourceServer


def main() -> None:
    port, facilitator, pay_to = sys.argv[1:]
    server = x402ResourceServer(HTTPFacilitatorClient(FacilitatorConfig(url=facilitator)))
    server.register("eip155:8453", ExactEvmServerScheme())  # type: ignore[no-untyped-call,arg-type]  # as the SDK shows
    option = PaymentOption(scheme="exact", pay_to=pay_to, price="$0.006", network="eip155:8453")
    app = FastAPI()
    guard = payment_middleware({"POST /v1/search/paid": RouteConfig(accepts=[option])}, server)
    app.middleware("http")(guard)

    @app.post("/v1/search/paid")
    async def search() -> dict[str, str]:
        return {"ok": "yes"}

    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", access_log=False)


main()
