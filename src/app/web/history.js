// The last minutes as lines: tokens a second, and how many bytes a second each tier gives.
import {make} from './dom.js';
import {bytes, duration, rough, t} from './words.js';

const MOST_SECONDS = 600, FEW_SECONDS = 20;  // that are remembered, and for which there is always room
const WIDTH = 480, HEIGHT = 64;

function svg(tag, attributes) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

export class History {
  reset() { this.samples = []; }
  constructor() { this.reset(); }

  add(before, now) {
    if (!before) return;
    const seconds = (now.time_ns - before.time_ns) / 1e9;
    if (seconds <= 0) return;
    const tiers = now.tiers.map((tier, i) => Math.max(0, tier.moved - before.tiers[i].moved) / seconds);
    this.samples.push({end: now.time_ns / 1e9, seconds, tokens: (now.decode_tokens - before.decode_tokens) / seconds, tiers});
    while (this.samples[0].end < now.time_ns / 1e9 - MOST_SECONDS) this.samples.shift();
  }

  draw(frame, now) {
    const perSecond = value => bytes(value) + '/s';
    frame.replaceChildren(
      this.#line(t('tokensPerSecond'), sample => sample.tokens, rough, 0, 'leaf'),
      ...now.tiers.map((tier, i) => this.#line(t('tierGives', {tier: t('tier_' + tier.tier)}), sample => sample.tiers[i], perSecond, tier.ceiling, i === 0 ? 'water' : 'warm')));
  }

  /// One line with its name, what it is now, and the most of it. `ceiling`: what the machine can; 0: unknown.
  #line(name, of, text, ceiling, colour) {
    const values = this.samples.map(of), now = values.at(-1) ?? 0, peak = Math.max(...values, 0);
    const near = ceiling > 0 && ceiling < 4 * peak, top = Math.max(near ? ceiling : peak, 1e-9);  // else the line would lie on the floor
    const frame = make('figure', 'history ' + colour);
    const picture = svg('svg', {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', 'aria-hidden': 'true'});
    const y = value => HEIGHT - 2 - (HEIGHT - 4) * value / top;
    if (near) picture.append(svg('line', {x1: 0, x2: WIDTH, y1: y(ceiling), y2: y(ceiling), class: 'ceiling'}));
    // Each sample is the time since the one before: a step, so that a long silence is as long as it was.
    const end = this.samples.at(-1)?.end ?? 0, span = end - (this.samples[0]?.end ?? 0) + (this.samples[0]?.seconds ?? 0);
    const x = time => WIDTH * Math.max(0, 1 - (end - time) / Math.max(span, FEW_SECONDS));
    const points = this.samples.flatMap((sample, i) => [`${x(sample.end - sample.seconds)},${y(values[i])}`, `${x(sample.end)},${y(values[i])}`]);
    picture.append(svg('polyline', {points: points.join(' '), class: 'curve'}));
    const words = t('lineWords', {now: text(now), peak: text(peak), time: duration(span)}) + (ceiling > 0 ? ', ' + t('lineCeiling', {ceiling: text(ceiling)}) : '');
    const caption = make('figcaption');
    caption.append(make('b', '', name), make('span', 'words', words));
    frame.append(caption, picture);
    return frame;
  }
}
