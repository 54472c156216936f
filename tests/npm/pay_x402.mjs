// Buys one call with the stock @x402/fetch client and prints one JSON line: {status, headers, body, requests}.
//   node pay_x402.mjs URL BODY PRIVATE_KEY RPC_URL IDEMPOTENCY_KEY
import { ExactEvmScheme } from "@x402/evm";
import { wrapFetchWithPaymentFromConfig } from "@x402/fetch";
import { privateKeyToAccount } from "viem/accounts";
import { counted, told } from "./told.mjs";

const [url, body, privateKey, , idempotencyKey] = process.argv.slice(2);
const client = new ExactEvmScheme(privateKeyToAccount(privateKey));
const pay = wrapFetchWithPaymentFromConfig(counted, { schemes: [{ network: "eip155:8453", client }] });
await told(() =>
  pay(url, {
    method: "POST",
    body,
    headers: { "content-type": "application/json", "idempotency-key": idempotencyKey },
  }),
);
