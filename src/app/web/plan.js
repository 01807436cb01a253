// The plan as drawn tiers: what is at home where, and beside what was predicted for a token what is measured.
import {make} from './dom.js';
import {bytes, number, rough, t} from './words.js';

const TIERS = ['vram', 'ram', 'disk'];
const sum = (rows, field) => rows.reduce((total, row) => total + row[field], 0);

/// What is measured, from one look to the next. Where prompts had more than a fifth of the rows it says nothing about
/// decoding: the last values stay until there are others.
export class Meter {
  reset() { this.last = {tokensPerSecond: 0, passMs: 0, waitMs: 0, usedPerToken: 0, diskPerToken: 0, sequences: 0, readerPerSecond: 0, guessed: false}; }
  constructor() { this.reset(); }
  add(before, now) {
    const passes = before ? now.passes - before.passes : 0;
    const tokens = before ? now.decode_tokens - before.decode_tokens : 0;
    if (passes <= 0) return {...this.last, tokensPerSecond: 0};
    const passMs = (now.pass_ns - before.pass_ns) / passes / 1e6;
    const waitMs = Math.min(passMs, (now.stall_ns - before.stall_ns) / passes / 1e6);
    const tokensPerSecond = tokens / ((now.time_ns - before.time_ns) / 1e9);
    const drafts = field => sum(now.drafts, field) - sum(before.drafts, field);
    const turns = tokens - drafts('right');  // passes of each reader, which give a token beside the drafts that were right
    const promptRows = now.rows - before.rows - turns - drafts('drafted');
    if (tokens === 0 || promptRows > tokens / 4) return {...this.last, tokensPerSecond, passMs, waitMs};
    const moved = tier => (now.tiers[tier].moved - before.tiers[tier].moved) / tokens;
    this.last = {tokensPerSecond, passMs, waitMs, usedPerToken: moved(0), diskPerToken: moved(1), sequences: turns / passes,
                 readerPerSecond: 1e3 / passMs * tokens / Math.max(1, turns), guessed: drafts('right') > 0};
    return this.last;
  }
}

/// The engine's name of a kind of weights, in the reader's words where there are such.
const SAME = {embedding_and_head: 'embedding_as_head', slots: 'cache'};
const whatOf = row => row.what.split(', ').map(part => {
  const name = part.replaceAll(' ', '_'), key = 'what_' + (SAME[name] ?? name), word = t(key);
  return word === key ? part : word;
}).join(', ');

export function drawPlan(frame, now, measured) {
  const groups = TIERS.map(tier => ({tier, rows: now.plan.rows.filter(row => row.tier === tier && row.bytes > 0)})).filter(group => group.rows.length > 0);
  const largest = Math.max(...groups.map(group => sum(group.rows, 'bytes')));
  frame.replaceChildren(...groups.map(group => tierElement(group, now, largest)), comparison(now, measured));
}

function tierElement({tier, rows}, now, largest) {
  const element = make('div', 'tier'), bar = make('div', 'tier-bar'), words = make('ul', 'legend');
  const rate = {vram: now.rates.device_memory, ram: now.rates.ram, disk: now.rates.disk}[tier];
  const head = make('div', 'tier-head');
  head.append(make('b', '', t('tier_' + tier)), make('small', '', t('tierWords', {size: bytes(sum(rows, 'bytes'))}) +
    (rate > 0 ? ', ' + t('tierRate', {rate: bytes(rate) + '/s'}) : '')));
  rows.forEach((row, i) => {
    const part = make('span', 'shade' + i % 4), label = t('rowWords', {what: whatOf(row), size: bytes(row.bytes), read: bytes(row.bytes_per_token)});
    part.style.width = 100 * row.bytes / largest + '%';
    part.title = label;
    bar.append(part);
    const entry = make('li');
    entry.append(make('span', 'key shade' + i % 4), label);
    words.append(entry);
  });
  bar.setAttribute('aria-hidden', 'true');
  element.append(head, bar, words);
  return element;
}

/// What the plan expects for as many conversations at once as were measured, each of them; 0: unknown.
export function expected(now, measured) {
  const together = Math.max(1, Math.round(measured.sequences));
  return now.plan.tokens_per_second_side_by_side?.[together - 1] ?? (together === 1 ? now.plan.tokens_per_second : 0);
}

/// What was predicted for a token beside what is measured, of the same number of conversations at once. What is read for
/// each token is predicted for one conversation alone.
function comparison(now, measured) {
  const rows = now.plan.rows, speed = expected(now, measured), alone = measured.sequences < 1.5;
  const value = (number, text) => number > 0 ? text(number) : '–';
  const read = rows => alone ? sum(rows, 'bytes_per_token') : 0;
  const lines = [
    [t('usedPerToken'), read(rows), measured.usedPerToken, bytes],
    [t('diskPerToken'), read(rows.filter(row => row.tier === 'disk')), measured.diskPerToken, bytes],
    [t('passesPerSecond'), speed, measured.readerPerSecond, rough],
  ];
  const table = make('table', 'beside'), head = make('tr');
  for (const word of [t('forAToken'), t('predicted'), t('measured')]) {
    const cell = make('th', '', word);
    cell.scope = 'col';
    head.append(cell);
  }
  table.append(head, ...lines.map(([name, predicted, found, text]) => {
    const line = make('tr'), title = make('th', '', name);
    title.scope = 'row';
    line.append(title, make('td', '', value(predicted, text)), make('td', '', value(found, text)));
    return line;
  }));
  const frame = make('div', 'table');
  frame.append(table);
  if (now.plan.tokens_per_second <= 0) frame.append(make('p', 'words', t('notCalibrated')));
  if (measured.guessed) frame.append(make('p', 'words', t('withGuesses')));
  if (!alone) frame.append(make('p', 'words', t('sideBySide', {n: number(Math.round(measured.sequences))})));
  return frame;
}
