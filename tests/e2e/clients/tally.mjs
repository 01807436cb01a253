// What each client was asked: which calls passed, and which were refused in which words. docs/reference/clients.md has the sums.
import assert from 'node:assert/strict';

const tallies = {};

/// `name` is what the call is to be called in the table, or gives that for a client.
function enter(clients, name, why) {
  for (const client of [clients].flat()) {
    const what = typeof name === 'function' ? name(client) : name;
    const tally = tallies[client] ??= {passed: [], refused: []};
    assert.ok(![...tally.passed, ...tally.refused.map(one => one.what)].includes(what), `${client}: two calls are named ${what}`);
    if (why === undefined) tally.passed.push(what);
    else tally.refused.push({what, why});
  }
}

/// A call that passes: what it gives.
export async function call(clients, name, made) {
  const value = await made();
  enter(clients, name);
  return value;
}

/// A call that fails as it should, in words that hold these: the client's error.
export async function fails(clients, name, words, made) {
  const [error] = await refusal(words, made);
  enter(clients, name);
  return error;
}

/// A call for what Millrace does not serve, refused in words that hold these: the client's error.
export async function refused(clients, name, words, made) {
  const [error, why] = await refusal(words, made);
  enter(clients, name, why);
  return error;
}

async function refusal(words, made) {
  const error = await made().then(() => assert.fail('it was not refused'), error => error);
  if (error instanceof assert.AssertionError) throw error;
  const body = error.error?.error ?? error.error ?? error.data?.error ?? error;
  const why = (typeof body === 'string' ? body : body.message ?? error.message).replace(/^\d{3} /, '');
  assert.match(why, words, error.stack ?? String(error));
  return [error, why];
}

/// Runs the tests, tells of each, and last of the calls; exits with 1 where one failed.
export async function runAll(tests) {
  let failed = 0;
  for (const [name, test] of Object.entries(tests)) {
    try {
      await test();
      console.log(`ok    ${name}`);
    } catch (error) {
      ++failed;
      console.log(`FAIL  ${name}\n${error.stack ?? error}`);
    }
  }
  console.log(JSON.stringify(tallies));
  process.exit(failed ? 1 : 0);
}
