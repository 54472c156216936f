// Compiles token.sol into token.json. Only needed after a change of the contract:
//   npm install --no-save solc@0.8.37 && node compile.mjs
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const solc = createRequire(join(process.cwd(), "package.json"))("solc");
const here = import.meta.dirname;
const source = readFileSync(join(here, "token.sol"), "utf8");
const settings = {
  evmVersion: "paris",
  optimizer: { enabled: true, runs: 200 },
  metadata: { bytecodeHash: "none", appendCBOR: false },
  outputSelection: { "*": { "*": ["abi", "evm.bytecode.object", "evm.deployedBytecode.object", "storageLayout"] } },
};
const output = JSON.parse(
  solc.compile(JSON.stringify({ language: "Solidity", sources: { "token.sol": { content: source } }, settings })),
);
for (const message of output.errors ?? []) console.error(message.formattedMessage);
const contract = output.contracts["token.sol"].WorldDollar;
const artifact = {
  contract: "WorldDollar",
  compiler: `solc ${solc.version()}, evmVersion ${settings.evmVersion}, optimizer ${settings.optimizer.runs} runs`,
  sourceSha256: createHash("sha256").update(source).digest("hex"),
  storage: Object.fromEntries(contract.storageLayout.storage.map((entry) => [entry.label, Number(entry.slot)])),
  abi: contract.abi,
  bytecode: `0x${contract.evm.bytecode.object}`,
  runtime: `0x${contract.evm.deployedBytecode.object}`,
};
writeFileSync(join(here, "token.json"), `${JSON.stringify(artifact, null, 1)}\n`);
