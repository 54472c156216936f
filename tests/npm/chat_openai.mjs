// Makes calls with OpenAI's own client and prints one JSON line for all of them: [{value | error, requests}].
//   node chat_openai.mjs BASE_URL '[["models.list"], ["chat.completions.create", {...}], ...]'
import OpenAI from "openai";

const [baseURL, calls] = process.argv.slice(2);
let requests = 0;
const client = new OpenAI({
  apiKey: "none",
  baseURL,
  fetch: (...parameters) => {
    requests += 1;
    return fetch(...parameters);
  },
});

const told = [];
for (const [name, ...parameters] of JSON.parse(calls)) {
  requests = 0;
  const path = name.split(".");
  const method = path.pop();
  const resource = path.reduce((found, step) => found[step], client);
  try {
    told.push({ value: await resource[method](...parameters), requests });
  } catch (error) {
    const { status, code, param, type, message } = error;
    told.push({ error: { kind: error.constructor.name, status, code, param, type, message }, requests });
  }
}
console.log(JSON.stringify(told));
