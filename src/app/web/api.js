// The server's API, the same that every client speaks.
import {t} from './words.js';

let key = '';
try { key = sessionStorage.getItem('millrace.key') ?? ''; } catch { /* private windows */ }

export const apiKey = () => key;
export function setApiKey(value) {
  key = value;
  try { sessionStorage.setItem('millrace.key', value); } catch { /* then it holds for this page alone */ }
}

/// A response that is well. Throws an Error with the server's words, and its `status`.
export async function call(path, options = {}) {
  const headers = {'Content-Type': 'application/json'};
  if (key) headers.Authorization = 'Bearer ' + key;
  const response = await fetch(path, {...options, headers}).catch(error => {
    throw error.name === 'AbortError' ? error : new Error(t('noServer'));
  });
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const error = new Error(body.error?.message ?? body.error ?? `${response.status} ${response.statusText}`);
  error.status = response.status;
  throw error;
}
export const getJson = async path => (await call(path)).json();
export const post = (path, body, signal) => call(path, {method: 'POST', body: JSON.stringify(body), signal});

/// The objects of a stream of lines.
export async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) break;
    const parts = (rest + value).split('\n');
    rest = parts.pop();
    for (const part of parts) if (part.trim()) yield JSON.parse(part);
  }
  if (rest.trim()) yield JSON.parse(rest);
}
