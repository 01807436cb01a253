// Which models there are: the list to choose from, and the view that pulls, unloads and deletes them, offers those that
// fit this machine, and searches the hub.
import {call, getJson, lines, post} from './api.js';
import {$, button, complainAbout, keep, kept, make} from './dom.js';
import {askForKey, showDefaults} from './settings.js';
import {bytes, number, rough, t} from './words.js';

export const shortName = name => name.replace(/:latest$/, '');
let chosen = null;  // by the reader, on this page
let onNames = () => {};  // the list was read anew

/// Fills the list to choose from. What the reader chose stays; else it is the model that is loaded (of several the one
/// chosen last time), so that no question makes the server load another; else the one chosen last time.
export async function refreshNames() {
  let models = [], loaded = new Map();
  try {
    const [tags, ps] = await Promise.all([getJson('api/tags'), getJson('api/ps')]);
    models = tags.models;
    loaded = new Map(ps.models.map(model => [model.name, model]));
  } catch (error) {
    complainAbout(error.message, t('retry'), refreshNames);
    if (error.status === 401) askForKey();
    return {models, loaded, failed: true};
  }
  const names = models.map(model => model.name);
  const there = name => names.includes(name) ? name : undefined;
  const before = kept('model'), running = names.filter(name => loaded.has(name));
  const pick = there(chosen) ?? (running.includes(before) ? before : running[0]) ?? there(before) ?? names[0] ?? '';
  const changed = $('model').value !== pick;
  $('model').replaceChildren(...names.map(name => new Option((loaded.has(name) ? '● ' : '') + shortName(name), name)));
  $('model').value = pick;
  $('model').closest('label').hidden = names.length === 0;
  if (changed && pick) showDefaults(pick);
  onNames();
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
  await offerFitting(models.map(model => model.name));
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
  } else {
    const load = button(t('load'), 'plain', async () => {
      load.disabled = true;
      try {
        await post('api/generate', {model: model.name, stream: false});
      } catch (error) {
        $('pull-progress').textContent = error.message;
      }
      listModels();
    });
    entry.append(load);
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

// --- Models to pull ---

function pullItem(name, about) {
  const entry = make('li');
  entry.append(make('span', 'name', name), make('span', 'about', about), button(t('pull'), 'plain', () => pull(name), t('pullWhat', {name})));
  return entry;
}

/// Five well-known ones that fit this machine, but for those that are here.
async function offerFitting(here) {
  try {
    const {models, ram, vram} = await getJson('api/millrace/suggestions');
    const others = models.filter(one => !here.includes(one.name) && !here.includes(one.name + ':latest'));
    $('fitting-words').textContent = vram > 0 ? t('fittingGpu', {vram: bytes(vram), ram: bytes(ram)}) : t('fittingCpu', {ram: bytes(ram)});
    $('fitting').replaceChildren(...others.map(one => pullItem(one.name, aboutFitting(one))));
  } catch (error) {
    $('fitting-words').textContent = error.message;
  }
}
function aboutFitting({size, tokens_per_second: speed, tier}) {
  return [bytes(size), speed > 0 ? t('aboutRate', {rate: rough(speed)}) : t('speedUnknown'), ...(tier === 'disk' ? [t('fromDisk')] : [])].join(' · ');
}

async function searchHub(event) {
  event.preventDefault();
  const query = $('hub-words').value.trim();
  if (!query) return;
  const note = text => $('found').replaceChildren(make('li', 'words', text));
  note(t('searching'));
  try {
    const {models} = await (await post('api/millrace/search', {query})).json();
    if (models.length === 0) return note(t('foundNone', {query}));
    $('found').replaceChildren(...models.map(one => pullItem(one.name, t('downloads', {n: number(one.downloads)}))));
  } catch (error) {
    note(error.message);
    $('found').lastChild.append(' ', button(t('retry'), 'plain small', () => $('hub').requestSubmit()));
  }
}

let pulling = null;
async function pull(model) {
  if (!model || pulling) return;
  pulling = new AbortController();
  $('pull-stop').hidden = false;
  const words = make('span'), bar = make('progress', 'bar');
  bar.value = 0;
  $('pull-progress').replaceChildren(make('b', '', model), ' ', words, bar);
  $('pull-progress').scrollIntoView({block: 'nearest'});
  try {
    for await (const part of lines(await post('api/pull', {model}, pulling.signal))) {
      if (part.error) throw new Error(part.error);
      words.textContent = part.status + (part.total ? ' ' + t('someOf', {done: bytes(part.completed ?? 0), total: bytes(part.total)}) : '');
      if (part.total) Object.assign(bar, {max: part.total, value: part.completed ?? 0});
    }
    $('pull-progress').replaceChildren(make('b', '', model), ' ', t('pulled'), ' ', button(t('chat'), 'small', () => $('tab-chat').click()));
  } catch (error) {
    bar.remove();
    words.className = 'problem';
    // Browsers have a TypeError and words of their own for a stream that breaks.
    words.textContent = error.name === 'AbortError' ? t('pullStopped') : error instanceof TypeError ? t('pullBroken') : error.message;
    $('pull-progress').append(' ', button(t('retry'), 'plain small', () => pull(model)));
  }
  pulling = null;
  $('pull-stop').hidden = true;
  listModels();
}

/// `changed`: called whenever the list of models was read anew.
export function setUpModels(changed) {
  onNames = changed;
  $('model').onchange = () => {
    chosen = $('model').value;
    keep('model', chosen);
    showDefaults(chosen);
  };
  $('pull').onsubmit = event => {
    event.preventDefault();
    pull($('pull-name').value.trim());
  };
  $('hub').onsubmit = searchHub;
  $('pull-stop').onclick = () => pulling?.abort();
}
