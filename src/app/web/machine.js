// The Machine view: where the weights are, how fast they move, what was predicted, and what would help.
import {getJson, post} from './api.js';
import {advise} from './advice.js';
import {$, make} from './dom.js';
import {drawHeat} from './heat.js';
import {History} from './history.js';
import {shortName} from './models.js';
import {Meter, drawPlan, expected} from './plan.js';
import {bytes, number, rough, t} from './words.js';

const EVERY = 700;  // milliseconds between two looks

let looking = false, before = null;
let past = null;  // what the server remembers of the last minutes, by model, as of the first look
const about = new Map();  // by model: {parameters, size}
const meter = new Meter(), history = new History();

/// Looks until the view is left.
export async function lookAtMachine() {
  if (looking) return;
  looking = true;
  while (!$('machine').hidden) {
    if (!document.hidden) await look();
    await new Promise(done => setTimeout(done, EVERY));
  }
  looking = false;
}

async function look() {
  try {
    const {models, history: told} = await getJson('api/millrace/live' + (past ? '' : '?history=1'));
    past ??= new Map(told.map(({model, samples}) => [model, samples.map(asLook)]));
    const now = models.find(model => model.model === $('model').value) ?? models[0];
    $('live').hidden = !now && !before;  // the last figures stay when the model goes
    if (now) await show(now);
    $('idle').hidden = Boolean(now || before);
    $('idle').textContent = t('idle');
    showPast(!now && !before);
  } catch (error) {
    $('idle').hidden = false;
    $('idle').textContent = error.message;
  }
}

/// A sample of the server's history in the form of a look.
const asLook = sample => ({...sample, drafts: [{drafted: sample.guesses, right: sample.right_guesses}], tiers: sample.moved.map(moved => ({moved}))});
/// The meter and the curves begin with what was before the first look.
function replay(samples) {
  let last = null, measured = meter.last;
  for (const sample of samples) {
    if (last && last.time_ns < sample.time_ns) {
      measured = meter.add(last, sample);
      history.add(last, sample);
    }
    last = sample;
  }
  return last ? {last, measured} : {last: null, measured};
}

/// Of a model that is no longer loaded: the curves of the last minutes.
function showPast(wanted) {
  const [model, samples] = wanted ? [...past].at(-1) ?? [] : [];
  $('past').hidden = !model;
  if (!model || $('past').dataset.model === model) return;
  $('past').dataset.model = model;
  meter.reset();
  history.reset();
  const {measured} = replay(samples);
  $('past-name').textContent = shortName(model);
  $('past-words').textContent = measured.readerPerSecond > 0 ? t('speedMeasured', {measured: rough(measured.readerPerSecond)}) : t('speedNone');
  history.draw($('past-history'), {tiers: [{tier: 'ram', ceiling: 0}, {tier: 'disk', ceiling: 0}]});
}

async function aboutModel(name) {
  if (!about.has(name)) {
    const [shown, {models}] = await Promise.all([post('api/show', {model: name}).then(response => response.json()), getJson('api/tags')]);
    about.set(name, {parameters: shown.model_info['general.parameter_count'] ?? 0, size: models.find(model => model.name === name)?.size ?? 0});
  }
  return about.get(name);
}

async function show(now) {
  if (before?.model !== now.model || now.time_ns < before.time_ns) {
    before = null;
    meter.reset();
    history.reset();
    before = replay(past.get(now.model)?.filter(sample => sample.time_ns < now.time_ns && sample.passes <= now.passes) ?? []).last;
    past.delete(now.model);
  }
  $('live-name').textContent = t('modelOn', {model: shortName(now.model), device: now.executor});
  const measured = meter.add(before, now);
  drawPlan($('plan'), now, measured);
  showSplit(measured);
  history.add(before, now);
  history.draw($('history'), now);
  const advice = advise(now, await aboutModel(now.model));
  showSpeed(now, measured, advice);
  showAdvice(advice);
  drawHeat($('heat-frame'), now.experts, before?.experts);  // what the history has of before has no experts
  showHits(now);
  showGuesses(now);
  showNumbers(now);
  before = now;
}

/// In a sentence or two: what was expected, what is measured, what limits it, and what would help most.
function showSpeed(now, measured, advice) {
  const together = Math.max(1, Math.round(measured.sequences)), speed = expected(now, measured);
  const values = {expected: rough(speed), measured: rough(measured.readerPerSecond), n: number(together), bound: t('bound_' + now.plan.bound)};
  const words = [];
  if (now.live === 0) words.push(t('speedIdle'));
  if (measured.readerPerSecond > 0)
    words.push(t(speed <= 0 ? 'speedMeasured' : together > 1 ? 'speedMany' : 'speedOne', values));
  else
    words.push(speed > 0 ? t('speedExpected', values) : t('speedNone'));
  const help = advice.find(line => line.factor >= 1.2);
  if (help?.values.more) words.push(t(help.key.startsWith('moreVram') ? 'moreVramFactor' : 'moreRamFactor', {more: help.values.more, factor: rough(help.factor)}));
  const text = words.join(' ');
  if ($('speed').textContent !== text) $('speed').textContent = text;
}

function showSplit({passMs, waitMs}) {
  const ms = value => number(value, 2) + ' ms';
  $('split-words').textContent = passMs > 0 ? t('passWords', {pass: ms(passMs), compute: ms(passMs - waitMs), wait: ms(waitMs)}) : '';
}

function showAdvice(list) {
  const lines = list.map(({key, values}) => t(key, values));
  if (lines.join() === [...$('advice').children].map(item => item.textContent).join()) return;
  $('advice').replaceChildren(...lines.map(line => make('li', '', line)));
}

function showHits(now) {
  if (now.experts.length === 0) {
    $('heat-words').textContent = t('noExperts');
    return;
  }
  const all = now.experts.map(row => row.present).join('');
  const asked = now.hits + now.misses;
  $('heat-words').textContent = t('expertsIn', {here: number(all.replaceAll('0', '').length), all: number(all.length)}) +
    (asked ? ' ' + t('hits', {hits: number(now.hits), misses: number(now.misses), percent: number(100 * now.hits / asked, 1)}) : '');
}

/// A line for each drafter that had its turn.
function showGuesses(now) {
  const lines = now.drafts.filter(one => one.drafted > 0).map(one => {
    const share = (right, all) => number(100 * right / all, 0) + ' %';
    const ms = seconds => number(1000 * seconds / Math.max(1, one.passes), 2) + ' ms';
    return t('guessWords', {drafter: one.drafter, right: number(one.right), all: number(one.drafted), percent: share(one.right, one.drafted),
                            places: one.drafted_at.map((all, place) => share(one.right_at[place], all)).join(' · '),
                            guessing: ms(one.seconds), verifying: ms(one.verify_seconds)});
  });
  if (lines.length > 0) lines.unshift(t('tokensAPass', {tokens: number(now.tokens_a_turn, 2)}));
  $('guesses').replaceChildren(...(lines.length > 0 ? lines : [t('noGuesses')]).map(line => make('p', '', line)));
}

function showNumbers(now) {
  const numbers = {
    requests: t('someOf', {done: number(now.live), total: number(now.max_sequences)}), queued: number(now.queued),
    lastRows: number(now.last_rows), kvBlocks: t('someOf', {done: number(now.kv_blocks), total: number(now.kv_blocks_bound)}),
    kvCached: number(now.kv_blocks_cached), shared: number(now.shared_tokens), context: number(now.context_tokens),
    memory: now.memory_cap < 1e18 ? t('someOf', {done: bytes(now.memory), total: bytes(now.memory_cap)}) : bytes(now.memory),
  };
  $('numbers').replaceChildren(...Object.entries(numbers).map(([name, value]) => {
    const box = make('div');
    box.title = t('about_' + name);
    box.append(make('dt', '', t('number_' + name)), make('dd', '', value));
    return box;
  }));
}
