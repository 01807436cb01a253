// Which experts are in memory: a row a layer, a column an expert, both named.
import {make} from './dom.js';
import {number, t} from './words.js';

const LEFT = 34, TOP = 18;  // room for the names, in pixels
const KINDS = {here: '--water', came: '--warm', away: '--line'};

/// `rows`: [{layer, present: "0110..."}]; `before`: the same a look earlier, or nothing.
export function drawHeat(frame, rows, before) {
  frame.hidden = rows.length === 0;
  if (frame.hidden) return;
  if (!frame.firstChild) build(frame);
  const canvas = frame.querySelector('canvas'), experts = Math.max(...rows.map(row => row.present.length));
  const width = Math.max(200, frame.clientWidth), cell = (width - LEFT) / experts;
  const high = Math.max(3, Math.min(16, Math.round(cell), 480 / rows.length)), height = TOP + high * rows.length;
  const scale = devicePixelRatio || 1;
  Object.assign(canvas, {width: width * scale, height: height * scale});
  canvas.style.height = height + 'px';
  Object.assign(canvas.dataset, {layers: rows.length, experts});
  const style = getComputedStyle(document.documentElement), colour = name => style.getPropertyValue(name).trim();
  const colours = Object.fromEntries(Object.entries(KINDS).map(([kind, name]) => [kind, colour(name)]));
  const picture = canvas.getContext('2d');
  picture.scale(scale, scale);
  const gap = cell > 4 && high > 4 ? 1 : 0;
  rows.forEach((row, y) => [...row.present].forEach((is, x) => {
    picture.fillStyle = colours[kindOf(is, before?.[y]?.present[x])];
    picture.fillRect(LEFT + x * cell, TOP + y * high, cell - gap, high - gap);
  }));
  names(picture, colour('--soft'), rows, experts, cell, high);
  canvas.onpointermove = event => {
    const x = Math.floor((event.offsetX - LEFT) / cell), y = Math.floor((event.offsetY - TOP) / high), row = rows[y];
    canvas.title = row && x >= 0 && x < row.present.length
      ? t('cell', {layer: number(row.layer), expert: number(x), state: t('cell_' + kindOf(row.present[x], before?.[y]?.present[x]))}) : '';
  };
}
const kindOf = (is, was) => is === '0' ? 'away' : was === '0' ? 'came' : 'here';

/// As many numbers as there is room for.
function names(picture, colour, rows, experts, cell, high) {
  picture.fillStyle = colour;
  picture.font = '11px system-ui, sans-serif';
  picture.textBaseline = 'middle';
  picture.textAlign = 'end';
  const everyRow = Math.ceil(12 / high), everyColumn = Math.ceil(26 / cell);
  rows.forEach((row, y) => { if (y % everyRow === 0) picture.fillText(row.layer, LEFT - 6, TOP + (y + 0.5) * high); });
  picture.textAlign = 'center';
  for (let x = 0; x < experts; x += everyColumn) picture.fillText(x, LEFT + (x + 0.5) * cell, TOP / 2);
}

function build(frame) {
  const canvas = make('canvas');
  canvas.setAttribute('role', 'img');
  canvas.setAttribute('aria-label', t('heatLabel'));
  const legend = make('ul', 'legend');
  for (const kind of Object.keys(KINDS)) {
    const entry = make('li');
    entry.append(make('span', 'key heat-' + kind), t('cell_' + kind));
    legend.append(entry);
  }
  frame.append(make('p', 'words', t('heatAxes')), canvas, legend);
}
