"""The facilitator of the x402 Python SDK on HTTP, a process of its own: `python -m gateway.world.facilitator --help`.

It prints `{"port": N}` once it serves.  Each call has a thread, because the SDK's asynchronous class blocks its loop
while it waits for a block.  The wire is the SDK's own: its models, by alias, without nulls.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from x402 import x402FacilitatorSync
from x402.mechanisms.evm import FacilitatorWeb3Signer
from x402.mechanisms.evm.exact import register_exact_evm_facilitator
from x402.schemas import SchemeNotFoundError
from x402.schemas.helpers import parse_payment_payload, parse_payment_requirements

MAX_BODY = 2**20
CONFIRMATION_TIMEOUT_S = 60.0


class BadRequest(Exception):
    """The call cannot be read: says why."""


class SerialSigner(FacilitatorWeb3Signer):
    """Sends one transaction at a time and takes each nonce from the chain.

    The SDK's signer counts nonces itself; after a failed send, or a reorganisation, its count is ahead of the chain
    and nothing it sends is ever mined.  Waiting for receipts stays concurrent.
    """

    def __init__(self, private_key: str, rpc_url: str) -> None:
        super().__init__(private_key, rpc_url, confirmation_timeout_seconds=CONFIRMATION_TIMEOUT_S)
        self._sending = threading.Lock()

    def write_contract(
        self, address: str, abi: list[dict[str, Any]], function_name: str, *args: Any, data_suffix: str | None = None
    ) -> str:
        """Send a contract call and return its transaction hash."""
        with self._sending:
            self._next_nonce = None
            return super().write_contract(address, abi, function_name, *args, data_suffix=data_suffix)

    def send_transaction(self, to: str, data: bytes) -> str:
        """Send a raw transaction and return its hash."""
        with self._sending:
            self._next_nonce = None
            return super().send_transaction(to, data)


def facilitator_of(private_key: str, rpc_url: str, network: str) -> x402FacilitatorSync:
    """Return the SDK's facilitator for `exact` payments on one EVM network."""
    facilitator = x402FacilitatorSync()
    register_exact_evm_facilitator(facilitator, SerialSigner(private_key, rpc_url), networks=network)
    return facilitator


def decide(facilitator: x402FacilitatorSync, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """Return the status and answer of one call; a payment that does not stand is an answer, not an error."""
    actions: dict[str, Callable[..., Any]] = {"/verify": facilitator.verify, "/settle": facilitator.settle}
    if path == "/supported" and method == "GET":
        return 200, _wire(facilitator.get_supported())
    if path not in actions:
        return 404, {"error": f"there is no {path}"}
    if method != "POST":
        return 405, {"error": f"{path} takes POST"}
    try:
        payload, requirements = _read(body)
        return 200, _wire(actions[path](payload, requirements))
    except BadRequest as error:
        return 400, {"error": str(error)}
    except SchemeNotFoundError as error:
        return 400, {"error": f"unsupported_scheme: {error}"}


def _read(body: bytes) -> tuple[Any, Any]:
    try:
        call = json.loads(body)
        version = call["x402Version"]
        return parse_payment_payload(call["paymentPayload"]), parse_payment_requirements(
            version, call["paymentRequirements"]
        )
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest(f"{type(error).__name__}: {error}") from error


def _wire(answer: Any) -> dict[str, Any]:
    wire: dict[str, Any] = answer.model_dump(by_alias=True, exclude_none=True, mode="json")
    return wire


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, address: tuple[str, int], facilitator: x402FacilitatorSync) -> None:
        super().__init__(address, _Handler)
        self.facilitator = facilitator


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    timeout = 120

    @property
    def _facilitator(self) -> x402FacilitatorSync:
        if not isinstance(self.server, _Server):
            raise TypeError(self.server)
        return self.server.facilitator

    def do_GET(self) -> None:
        self._answer("GET", b"")

    def do_POST(self) -> None:
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            self.close_connection = True
            self._send(413 if length.isdecimal() else 411, {"error": f"send content-length, at most {MAX_BODY}"})
            return
        self._answer("POST", self.rfile.read(int(length)))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's signature
        logging.getLogger("gateway.world.facilitator").info(format, *args)

    def _answer(self, method: str, body: bytes) -> None:
        try:
            status, answer = decide(self._facilitator, method, self.path, body)
        except Exception:  # one call's failure is that call's answer, and stands in the log
            logging.getLogger("gateway.world.facilitator").exception("%s %s", method, self.path)
            status, answer = 500, {"error": "the facilitator failed; its log says how"}
        self._send(status, answer)

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(arguments: Sequence[str]) -> int:
    """Serve until ended."""
    parser = argparse.ArgumentParser(prog="python -m gateway.world.facilitator")
    parser.add_argument("--rpc", required=True, help="JSON-RPC address of the chain")
    parser.add_argument("--key-file", required=True, type=Path, help="file of the key that pays for gas")
    parser.add_argument("--network", default="eip155:8453")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    facilitator = facilitator_of(options.key_file.read_text().strip(), options.rpc, options.network)
    with _Server(("127.0.0.1", options.port), facilitator) as server:
        sys.stdout.write(json.dumps({"port": server.server_address[1]}) + "\n")
        sys.stdout.flush()
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
