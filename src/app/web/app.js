// The page at "/": chat, models, and where the weights are. Talks to the same APIs as every client.
'use strict';

const $ = id => document.getElementById(id);
const make = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};
const bytes = n => {
  for (const unit of ['B', 'kB', 'MB', 'GB', 'TB']) {
    if (n < 1000 || unit === 'TB') return `${n < 10 && unit !== 'B' ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1000;
  }
};
const keep = (name, value) => { try { localStorage.setItem('millrace.' + name, value); } catch { /* private windows */ } };
const kept = name => { try { return localStorage.getItem('millrace.' + name); } catch { return null; } };

async function call(path, options = {}) {
  const headers = {'Content-Type': 'application/json'};
  if ($('key').value) headers.Authorization = 'Bearer ' + $('key').value;
  const response = await fetch(path, {...options, headers});
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new Error(body.error?.message ?? body.error ?? `${response.status} ${response.statusText}`);
}
const post = (path, body, signal) => call(path, {method: 'POST', body: JSON.stringify(body), signal});

async function* lines(response) {
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

// --- Views ---

const views = ['chat', 'models', 'machine'];
function show(name) {
  for (const view of views) {
    $(view).hidden = view !== name;
    $('tab-' + view).setAttribute('aria-selected', view === name);
    $('tab-' + view).tabIndex = view === name ? 0 : -1;
  }
  if (name === 'models') listModels();
  if (name === 'machine') lookAtMachine();
  if (name === 'chat') $('prompt').focus();
}
views.forEach((view, i) => {
  $('tab-' + view).onclick = () => show(view);
  $('tab-' + view).onkeydown = event => {
    const step = {ArrowRight: 1, ArrowLeft: views.length - 1}[event.key];
    if (!step) return;
    const next = views[(i + step) % views.length];
    show(next);
    $('tab-' + next).focus();
  };
});
const applyTheme = theme => theme ? document.documentElement.dataset.theme = theme : delete document.documentElement.dataset.theme;
applyTheme(kept('theme'));
$('theme').onclick = () => {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  applyTheme(dark ? 'light' : 'dark');
  keep('theme', dark ? 'light' : 'dark');
  drawHeat();
};

// --- Chat ---

let messages = [], running = null;

/// Text with code blocks set apart; never as HTML.
function fill(element, message) {
  element.replaceChildren();
  if (message.thinking) element.append(make('div', 'thought', message.thinking));
  message.content.split('```').forEach((part, i) => {
    if (i % 2 === 0) element.append(part);
    else element.append(make('pre', '', part.replace(/^[\w+#.-]*\n/, '')));
  });
}
function turn(role, message) {
  const element = make('div', 'turn ' + role);
  fill(element, message);
  $('log').append(element);
  $('log').scrollTop = $('log').scrollHeight;
  return element;
}
function busy(is) {
  $('send').hidden = is;
  $('stop').hidden = !is;
  $('again').disabled = is || !messages.some(m => m.role === 'assistant');
}

async function answer() {
  const reply = {role: 'assistant', content: ''};
  const element = turn('assistant', reply);
  running = new AbortController();
  busy(true);
  const began = performance.now();
  let first = 0, pieces = 0;
  $('status').textContent = 'Reading the prompt …';
  const options = {};
  for (const name of ['temperature', 'top_p', 'top_k', 'seed', 'num_predict'])
    if ($(name).value !== '') options[name] = Number($(name).value);
  const system = $('system').value.trim();
  try {
    const response = await post('/api/chat', {
      model: $('model').value, options,
      messages: system ? [{role: 'system', content: system}, ...messages] : messages,
    }, running.signal);
    for await (const part of lines(response)) {
      if (part.error) throw new Error(part.error);
      if (!first) first = performance.now();
      const seconds = (performance.now() - first) / 1000;
      $('status').textContent = ++pieces > 1 && seconds > .2 ? `Answering, about ${(pieces / seconds).toFixed(0)} tok/s` : 'Answering …';
      reply.content += part.message?.content ?? '';
      if (part.message?.thinking) reply.thinking = (reply.thinking ?? '') + part.message.thinking;
      const atEnd = $('log').scrollTop + $('log').clientHeight > $('log').scrollHeight - 40;
      fill(element, reply);
      if (atEnd) $('log').scrollTop = $('log').scrollHeight;
      if (part.done) {
        const rate = part.eval_count / (part.eval_duration / 1e9);
        $('status').textContent = `${part.prompt_eval_count} prompt tokens, ${part.eval_count} answered` +
          (isFinite(rate) ? ` at ${rate.toFixed(1)} tok/s` : '') + `, first after ${((first - began) / 1000).toFixed(2)} s` +
          (part.done_reason === 'length' ? ' (cut at the limit)' : '');
      }
    }
  } catch (error) {
    if (error.name === 'AbortError') {
      $('status').textContent = 'Stopped.';
    } else {
      if (!reply.content) element.remove();
      turn('error', {content: error.message});
      $('status').textContent = '';
    }
  }
  if (reply.content) messages.push(reply);
  running = null;
  busy(false);
}

$('ask').onsubmit = event => {
  event.preventDefault();
  const content = $('prompt').value.trim();
  if (!content || running) return;
  $('prompt').value = '';
  grow();
  messages.push({role: 'user', content});
  turn('user', {content});
  answer();
};
$('stop').onclick = () => running?.abort();
$('again').onclick = () => {
  if (running) return;
  while (messages.length && messages.at(-1).role === 'assistant') messages.pop();
  while ($('log').lastElementChild && !$('log').lastElementChild.classList.contains('user')) $('log').lastElementChild.remove();
  if (messages.length) answer();
};
$('clear').onclick = () => {
  running?.abort();
  messages = [];
  $('log').replaceChildren();
  $('status').textContent = '';
  busy(false);
  $('prompt').focus();
};
const grow = () => {
  $('prompt').style.height = 'auto';
  $('prompt').style.height = $('prompt').scrollHeight + 2 + 'px';
};
$('prompt').oninput = grow;
$('prompt').onkeydown = event => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $('ask').requestSubmit();
  }
};
document.addEventListener('keydown', event => {
  if (event.key === 'Escape') running?.abort();
  if (event.key === '/' && !/INPUT|TEXTAREA|SELECT/.test(document.activeElement.tagName)) {
    event.preventDefault();
    show('chat');
  }
});
$('system').value = kept('system') ?? '';
$('system').onchange = () => keep('system', $('system').value);
$('model').onchange = () => keep('model', $('model').value);
$('key').onchange = () => refreshNames();

// --- Models ---

async function refreshNames() {
  try {
    const {models} = await (await call('/api/tags')).json();
    const chosen = $('model').value || kept('model');
    $('model').replaceChildren(...models.map(m => new Option(m.name.replace(/:latest$/, ''), m.name)));
    if (models.some(m => m.name === chosen)) $('model').value = chosen;
    return models;
  } catch (error) {
    $('status').textContent = error.message;
    return [];
  }
}

async function listModels() {
  const models = await refreshNames();
  const loaded = new Map((await (await call('/api/ps')).json()).models.map(m => [m.name, m]));
  $('list').replaceChildren(...models.map(model => {
    const item = make('li');
    item.append(make('span', 'name', model.name.replace(/:latest$/, '')));
    item.append(make('span', 'about', `${model.details.parameter_size} ${model.details.quantization_level}, ${bytes(model.size)}`));
    if (loaded.has(model.name)) {
      item.append(make('span', 'loaded', 'loaded, ' + bytes(loaded.get(model.name).size)));
      const unload = make('button', 'plain', 'Unload');
      unload.onclick = async () => {
        await post('/api/generate', {model: model.name, keep_alive: 0, stream: false});
        setTimeout(listModels, 300);
      };
      item.append(unload);
    }
    const remove = make('button', 'plain', 'Delete');
    remove.onclick = async () => {
      if (!confirm(`Delete ${model.name}?`)) return;
      try {
        await call('/api/delete', {method: 'DELETE', body: JSON.stringify({model: model.name})});
      } catch (error) {
        $('pull-progress').textContent = error.message;
      }
      listModels();
    };
    item.append(remove);
    return item;
  }));
}

let pulling = null;
$('pull').onsubmit = async event => {
  event.preventDefault();
  const model = $('pull-name').value.trim();
  if (!model || pulling) return;
  pulling = new AbortController();
  $('pull-stop').hidden = false;
  const words = make('span'), bar = make('div', 'bar'), inside = make('span');
  bar.append(inside);
  $('pull-progress').replaceChildren(words, bar);
  try {
    for await (const part of lines(await post('/api/pull', {model}, pulling.signal))) {
      if (part.error) throw new Error(part.error);
      words.textContent = part.status + (part.total ? ` ${bytes(part.completed ?? 0)} of ${bytes(part.total)}` : '');
      if (part.total) inside.style.width = 100 * (part.completed ?? 0) / part.total + '%';
    }
  } catch (error) {
    words.textContent = error.name === 'AbortError' ? 'Stopped; pulling it again goes on from here.' : error.message;
  }
  pulling = null;
  $('pull-stop').hidden = true;
  listModels();
};
$('pull-stop').onclick = () => pulling?.abort();

// --- Machine ---

let last = null, heat = null;

function tierRow(tier, rate) {
  const row = make('div', 'tier'), bar = make('div', 'bar'), inside = make('span');
  row.append(make('b', '', tier.tier));
  inside.style.width = tier.ceiling ? Math.min(100, 100 * rate / tier.ceiling) + '%' : rate > 0 ? '100%' : '0';
  bar.append(inside);
  row.append(bar);
  row.append(make('small', '', `${bytes(rate)}/s` + (tier.ceiling ? ` of ${bytes(tier.ceiling)}/s measured for this machine` : '') +
    `; ${bytes(tier.moved)} moved, ${bytes(tier.weights)} of weights at home here`));
  return row;
}

function drawHeat() {
  const canvas = $('heat');
  if (!heat || !heat.layers.length) { canvas.hidden = true; return; }
  canvas.hidden = false;
  const columns = Math.max(...heat.layers.map(row => row.present.length)), rows = heat.layers.length;
  canvas.width = columns;
  canvas.height = rows;
  canvas.style.height = Math.min(420, Math.max(rows * 6, Math.min(rows * 16, Math.round(rows * canvas.clientWidth / columns)))) + 'px';
  const style = getComputedStyle(document.documentElement), context = canvas.getContext('2d');
  const color = name => style.getPropertyValue(name).trim();
  heat.layers.forEach((row, y) => [...row.present].forEach((here, x) => {
    const came = here === '1' && heat.before && heat.before[y]?.present[x] === '0';
    context.fillStyle = came ? color('--warm') : here === '1' ? color('--water') : color('--line');
    context.fillRect(x, y, 1, 1);
  }));
}

function showLive(now) {
  $('idle').hidden = true;
  $('live').hidden = false;
  $('live-name').textContent = `${now.model} on ${now.executor}`;
  const same = last && last.model === now.model && now.time_ns > last.time_ns;
  const seconds = same ? (now.time_ns - last.time_ns) / 1e9 : 0;
  const rates = now.tiers.map((tier, i) => same ? Math.max(0, tier.moved - last.tiers[i].moved) / seconds : 0);
  $('tiers').replaceChildren(...now.tiers.map((tier, i) => tierRow(tier, rates[i])));
  const passed = same ? now.passes - last.passes : 0;
  if (passed > 0 || !$('split').children.length) {
    const pass = passed > 0 ? (now.pass_ns - last.pass_ns) : now.pass_ns;
    const wait = Math.min(pass, passed > 0 ? now.stall_ns - last.stall_ns : now.stall_ns);
    const count = Math.max(1, passed > 0 ? passed : now.passes);
    const parts = [['compute', pass - wait], ['waiting', wait]];
    $('split').replaceChildren(...parts.map(([name, ns]) => {
      const part = make('span', name);
      part.style.width = pass > 0 ? 100 * ns / pass + '%' : '0';
      return part;
    }));
    const ms = ns => (ns / count / 1e6).toFixed(2) + ' ms';
    $('split-words').textContent = `A pass: ${ms(pass)}, of it ${ms(pass - wait)} computing and ${ms(wait)} waiting for weights.`;
    $('split').setAttribute('aria-label', $('split-words').textContent);
  }
  heat = {layers: now.experts, before: same ? last.experts : null};
  drawHeat();
  const experts = now.hits + now.misses;
  $('heat-words').textContent = now.experts.length
    ? `${now.experts.reduce((n, row) => n + [...row.present].filter(c => c === '1').length, 0)} of ` +
      `${now.experts.reduce((n, row) => n + row.present.length, 0)} in memory; ${now.hits} hits, ${now.misses} misses` +
      (experts ? ` (${(100 * now.hits / experts).toFixed(1)} % found)` : '') + '; those that just came are marked.'
    : 'This model has no experts.';
  const numbers = {
    'Requests': `${now.live} of ${now.max_sequences}`, 'Waiting': now.queued, 'Tokens last pass': now.last_rows,
    'KV blocks': `${now.kv_blocks} of ${now.kv_blocks_bound}`, 'Kept for later': now.kv_blocks_cached,
    'Shared tokens': now.shared_tokens, 'Memory': bytes(now.memory),
  };
  $('numbers').replaceChildren(...Object.entries(numbers).map(([name, value]) => {
    const box = make('div');
    box.append(make('dt', '', name), make('dd', '', value));
    return box;
  }));
  last = now;
}

let looking = false;
async function lookAtMachine() {
  if (looking) return;
  looking = true;
  while (!$('machine').hidden) {
    if (!document.hidden) {
      try {
        const {models} = await (await call('/api/millrace/live')).json();
        const now = models.find(m => m.model === $('model').value) ?? models[0];
        if (now) showLive(now);
        $('idle').hidden = Boolean(now);
        $('live').hidden = !now;
      } catch (error) {
        $('idle').hidden = false;
        $('idle').textContent = error.message;
      }
    }
    await new Promise(done => setTimeout(done, 700));
  }
  looking = false;
}

refreshNames();
busy(false);
$('prompt').focus();
