// Calls methods of the Node client, one for each line: {"path": "emails.send", "args": […]} in, {"data": …, "error": …} out.
// {"$react": ["p", {…}, …]} in an argument is a React element. {"methods": true} asks for the names of all methods,
// {"standard": {"secret", "payload", "headers"}} has the standardwebhooks library verify a message.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(`${process.env.LIBRARIES}/`);
const { Resend } = require("resend");
const { createElement } = require("react");
const { Webhook } = require("standardwebhooks");

const clients = new Map();
const client = (key) => {
  if (!clients.has(key)) clients.set(key, new Resend(key, { baseUrl: process.env.BASE_URL }));
  return clients.get(key);
};

const element = ([type, props, ...children]) => createElement(type, props, ...children.map((c) => (Array.isArray(c) ? element(c) : c)));

const revive = (value) => {
  if (Array.isArray(value)) return value.map(revive);
  if (value === null || typeof value !== "object") return value;
  if (value.$react) return element(value.$react);
  if (value.$buffer !== undefined) return Buffer.from(value.$buffer);
  if (value.$blob !== undefined) return new Blob([value.$blob]);
  return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, revive(v)]));
};

const methods = (object, prefix, depth) =>
  Object.entries(object).flatMap(([name, value]) => {
    if (depth > 4 || !value || typeof value !== "object" || ["resend", "client", "headers"].includes(name)) return [];
    const own = Object.getOwnPropertyNames(Object.getPrototypeOf(value)).filter((m) => m !== "constructor");
    return [...own.map((m) => `${prefix}${name}.${m}`), ...methods(value, `${prefix}${name}.`, depth + 1)];
  });

const answer = async ({ path, args, key, methods: all, standard }) => {
  if (all) return { data: methods(client("ms_x"), "", 0) };
  if (standard) return { data: new Webhook(standard.secret).verify(standard.payload, standard.headers) };
  if (path === "webhooks.verify") return { data: client(key).webhooks.verify(args[0]), error: null }; // asks no server
  const names = path.split(".");
  const owner = names.slice(0, -1).reduce((object, name) => object[name], client(key));
  const { data, error } = await owner[names.at(-1)](...revive(args));
  return { data, error };
};

for await (const line of createInterface({ input: process.stdin })) {
  let result;
  try {
    result = await answer(JSON.parse(line));
  } catch (error) {
    result = { thrown: String(error) };
  }
  process.stdout.write(`${JSON.stringify(result)}\n`);
}
