// What would make a model faster on this machine, estimated from the plan and the machine's rates. Pure.
import {bytes, number, rough} from './words.js';

const BITS = 4.8;  // a weight of the Q4_K_M mixture

const sum = (rows, field) => rows.reduce((total, row) => total + row[field], 0);
const least = rates => Math.min(...rates.filter(rate => rate > 0), Infinity);

/// Lines as {key, values} of words.js, the one that helps most first, with the factor by which it would make the model
/// faster; 0: unknown. Of the model: `parameters` and `size` in bytes; 0:
/// unknown.
export function advise({plan, rates, supposed_draft: draft, stall_ns, pass_ns, queued, live, max_sequences: most}, {parameters, size}) {
  const gpu = plan.rows.some(row => row.tier === 'vram'), fastTier = gpu ? 'vram' : 'ram';
  const used = sum(plan.rows, 'bytes_per_token'), slow = plan.rows.filter(row => row.tier !== fastTier), slowUsed = sum(slow, 'bytes_per_token');
  const away = Math.max(0, size - sum(plan.rows.filter(row => row.tier === fastTier), 'bytes'));
  const fast = gpu ? rates.device_memory : least([rates.ram, rates.cpu_decode]);
  const slowRate = slow.some(row => row.tier === 'disk') ? rates.disk : rates.host_to_device;
  const known = plan.tokens_per_second > 0 && isFinite(fast) && fast > 0;
  const list = [];
  const add = (key, values = {}, speed = 0) =>
    list.push(speed > 0 ? {key: key + 'Speed', values: {...values, speed: rough(speed)}, factor: speed / plan.tokens_per_second} : {key, values, factor: 0});

  if (slowUsed > 0.02 * used && away > 0)  // a few rows of a table are no burden
    add(gpu ? 'moreVram' : 'moreRam', {more: bytes(away)}, known ? Math.max(plan.tokens_per_second, fast / used) : 0);
  const bits = parameters > 0 ? 8 * size / parameters : 0;
  if (bits > BITS + 0.7) {
    const factor = BITS / bits, stillAway = Math.max(0, away - size * (1 - factor));
    const slowBytes = away > 0 ? slowUsed * stillAway / away : 0;
    const seconds = Math.max(used * factor / fast, slowRate > 0 ? slowBytes / slowRate : 0);
    add('fewerBits', {bits: number(bits, 1), to: 'Q4_K_M', size: bytes(size * factor)}, known ? 1 / seconds : 0);
  }
  // Where a pass waits for bytes, it verifies several tokens in the time of one.
  if (draft && slowUsed > 0.02 * used && away > 0 && (!known || draft.tokens_per_second > 1.1 * plan.tokens_per_second))
    add('draft', {size: bytes(draft.bytes), guesses: number(draft.guesses), percent: number(100 * draft.acceptance)}, known ? draft.tokens_per_second : 0);
  if (list.length === 0) add(gpu ? 'allInVram' : 'allInRam');
  if (pass_ns > 0 && stall_ns / pass_ns > 0.3) add('waits', {percent: number(100 * Math.min(1, stall_ns / pass_ns))});
  if (queued > 0 && live >= most) add('moreParallel', {queued: number(queued), most: number(most)});
  if (!known) add('calibrate');
  return list;
}
