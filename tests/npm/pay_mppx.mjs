// Buys one call with the stock mppx client and prints one JSON line: {status, headers, body, requests}.
//   node pay_mppx.mjs URL BODY PRIVATE_KEY RPC_URL IDEMPOTENCY_KEY
import { Mppx } from "mppx/client";
import { assets, charge } from "mppx/evm/client";
import { privateKeyToAccount } from "viem/accounts";
import { counted, told } from "./told.mjs";

const [url, body, privateKey, , idempotencyKey] = process.argv.slice(2);
const account = privateKeyToAccount(privateKey);
const mppx = Mppx.create({
  methods: [charge({ account, currencies: [assets.base.USDC], maxAmount: "1" })],
  fetch: counted,
  polyfill: false,
});
await told(() =>
  mppx.fetch(url, {
    method: "POST",
    body,
    headers: { "content-type": "application/json", "idempotency-key": idempotencyKey },
  }),
);
