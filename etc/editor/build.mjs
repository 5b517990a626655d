// Usage: node build.mjs FOLDER, in a copy of this folder beside node_modules. Writes the broadcast editor into FOLDER: one script (also
// compressed), one style sheet, and the licenses of what is in them.
import { build } from "esbuild";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(process.argv[2]);
const stub = (name) => join(here, name);
const options = { bundle: true, minify: true, legalComments: "none", metafile: true, logLevel: "error", absWorkingDir: here };

const script = await build({
  ...options,
  entryPoints: ["editor.jsx"],
  outfile: join(out, "editor.min.js"),
  format: "iife",
  target: "es2022",
  jsx: "automatic",
  define: { "process.env.NODE_ENV": '"production"', "process.env.LOCAL_ONLY": '""' },
  alias: { "react-email": stub("react-email.js"), prismjs: stub("prism.js"), "hast-util-from-html": stub("hast.js") },
});
const style = await build({ ...options, entryPoints: ["editor.css"], outfile: join(out, "editor.min.css") });
writeFileSync(join(out, "editor.min.js.gz"), gzipSync(readFileSync(join(out, "editor.min.js")), { level: 9 }));

const packages = new Map();
for (const input of Object.keys({ ...script.metafile.inputs, ...style.metafile.inputs })) {
  const found = input.match(/^.*node_modules\/(@[^/]+\/[^/]+|[^/]+)/);
  if (found) packages.set(found[0], found[1]);
}
const text = [...packages].map(([path, name]) => {
  const folder = join(here, path);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
  return `${name} ${version} (${license})\n\n${file ? readFileSync(join(folder, file), "utf8").trim() : "The package has no license file."}\n`;
});
writeFileSync(join(out, "editor.LICENSES"), text.sort().join(`\n${"-".repeat(72)}\n\n`));
