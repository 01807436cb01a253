// Which models there are: the list to choose from, and the view that loads, pulls, unloads and deletes.
import {call, getJson, lines, post} from './api.js';
import {$, button, keep, kept, make} from './dom.js';
import {askForKey, showDefaults} from './settings.js';
import {bytes, t} from './words.js';

export const shortName = name => name.replace(/:latest$/, '');
let chosen = null;  // by the reader, on this page

/// Fills the list to choose from. What the reader chose stays; else it is the model that is loaded (of several the one
/// chosen last time), so that no question makes the server load another; else the one chosen last time.
export async function refreshNames() {
  let models = [], loaded = new Map();
  try {
    const [tags, ps] = await Promise.all([getJson('api/tags'), getJson('api/ps')]);
    models = tags.models;
    loaded = new Map(ps.models.map(model => [model.name, model]));
  } catch (error) {
    $('status').textContent = error.message;
    if (error.status === 401) askForKey();
    return {models, loaded};
  }
  const names = models.map(model => model.name);
  const there = name => names.includes(name) ? name : undefined;
  const before = kept('model'), running = names.filter(name => loaded.has(name));
  const pick = there(chosen) ?? (running.includes(before) ? before : running[0]) ?? there(before) ?? names[0] ?? '';
  const changed = $('model').value !== pick;
  $('model').replaceChildren(...names.map(name => new Option((loaded.has(name) ? '● ' : '') + shortName(name), name)));
  $('model').value = pick;
  if (changed && pick) showDefaults(pick);
  return {models, loaded};
}

/// Whether the model that is chosen reads pictures. Asked each time: an mmproj file may have come since. Where the server
/// does not answer, it refuses pictures itself if it must.
export async function readsPictures() {
  try {
    const {capabilities} = await (await post('api/show', {model: $('model').value})).json();
    return !capabilities || capabilities.includes('vision');
  } catch {
    return true;
  }
}

export async function listModels() {
  const {models, loaded} = await refreshNames();
  $('list').replaceChildren(...models.map(model => item(model, loaded.get(model.name))));
  if (models.length === 0) $('list').append(make('li', 'words', t('noModels')));
}
function item(model, loaded) {
  const entry = make('li');
  entry.append(make('span', 'name', shortName(model.name)));
  entry.append(make('span', 'about', `${model.details.parameter_size} ${model.details.quantization_level}, ${bytes(model.size)}`));
  if (loaded) {
    entry.append(make('span', 'loaded', t('loaded', {size: bytes(loaded.size)})));
    entry.append(button(t('unload'), 'plain', async () => {
      await post('api/generate', {model: model.name, keep_alive: 0, stream: false});
      setTimeout(listModels, 300);
    }));
  }
  entry.append(button(t('remove'), 'plain', async () => {
    if (!confirm(t('removeWhat', {name: model.name}))) return;
    try {
      await call('api/delete', {method: 'DELETE', body: JSON.stringify({model: model.name})});
    } catch (error) {
      $('pull-progress').textContent = error.message;
    }
    listModels();
  }));
  return entry;
}

let pulling = null;
async function pull(event) {
  event.preventDefault();
  const model = $('pull-name').value.trim();
  if (!model || pulling) return;
  pulling = new AbortController();
  $('pull-stop').hidden = false;
  const words = make('span'), bar = make('progress', 'bar');
  bar.value = 0;
  $('pull-progress').replaceChildren(words, bar);
  try {
    for await (const part of lines(await post('api/pull', {model}, pulling.signal))) {
      if (part.error) throw new Error(part.error);
      words.textContent = part.status + (part.total ? ' ' + t('someOf', {done: bytes(part.completed ?? 0), total: bytes(part.total)}) : '');
      if (part.total) Object.assign(bar, {max: part.total, value: part.completed ?? 0});
    }
  } catch (error) {
    words.textContent = error.name === 'AbortError' ? t('pullStopped') : error.message;
  }
  pulling = null;
  $('pull-stop').hidden = true;
  listModels();
}

export function setUpModels() {
  $('model').onchange = () => {
    chosen = $('model').value;
    keep('model', chosen);
    showDefaults(chosen);
  };
  $('pull').onsubmit = pull;
  $('pull-stop').onclick = () => pulling?.abort();
}
