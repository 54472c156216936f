// What both paying scripts share: count the requests a client makes, tell its answer as one JSON line.
let requests = 0;

export function counted(...parameters) {
  requests += 1;
  return fetch(...parameters);
}

export async function told(call) {
  let line;
  try {
    const response = await call();
    const text = await response.text();
    let body = text;
    try {
      body = JSON.parse(text);
    } catch {
      // Told as text.
    }
    line = { status: response.status, headers: Object.fromEntries(response.headers), body };
  } catch (error) {
    line = { status: null, headers: {}, body: null, error: `${error?.name}: ${error?.message}` };
  }
  console.log(JSON.stringify({ ...line, requests }));
}
