// Checks lines of {"schema": ..., "text": "..."} with ajv; prints what fails and exits with 1.
const Ajv = require("ajv/dist/2020");
const addFormats = require("ajv-formats");
const fs = require("fs");

let failed = 0, count = 0;
const checks = new Map();
for (const line of fs.readFileSync(process.argv[2], "utf8").split("\n").filter(Boolean)) {
  const { schema, text } = JSON.parse(line);
  const key = JSON.stringify(schema);
  if (!checks.has(key)) {
    // Without a precision 0.07 / 0.01 is 7.000000000000001 for it.
    const ajv = new Ajv({ strict: false, multipleOfPrecision: 6 });
    addFormats(ajv);
    checks.set(key, ajv.compile(schema));
  }
  let ok = false;
  try {
    ok = checks.get(key)(JSON.parse(text));
  } catch (error) {
    console.error(String(error));
  }
  count += 1;
  if (!ok) {
    failed += 1;
    console.error(`${key}\n${text}\n${JSON.stringify(checks.get(key).errors)}`);
  }
}
console.log(`ajv: ${count} texts, ${failed} failed`);
process.exit(failed ? 1 : 0);
