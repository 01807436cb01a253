// What would make a model faster on this machine, estimated from the plan and the machine's rates. Pure.
import {bytes, number, rough} from './words.js';

const BITS = 4.8;  // a weight of the Q4_K_M mixture

const sum = (rows, field) => rows.reduce((total, row) => total + row[field], 0);
const least = rates => Math.min(...rates.filter(rate => rate > 0), Infinity);

/// Lines as {key, values} of words.js, the one that helps most first. `parameters`: of the model; 0: unknown.
export function advise({plan, rates, stall_ns, pass_ns, queued, live, max_sequences: most}, parameters) {
  const gpu = plan.rows.some(row => row.tier === 'vram'), fastTier = gpu ? 'vram' : 'ram';
  const weights = plan.rows.filter(row => !row.what.includes('cache'));
  const size = sum(weights, 'bytes'), used = sum(plan.rows, 'bytes_per_token');
  const here = sum(plan.rows.filter(row => row.tier === fastTier), 'bytes'), away = Math.max(0, size - here);
  const slow = plan.rows.filter(row => row.tier !== fastTier), fast = gpu ? rates.device_memory : least([rates.ram, rates.cpu_decode]);
  const slowRate = slow.some(row => row.tier === 'disk') ? rates.disk : rates.host_to_device;
  const known = plan.tokens_per_second > 0 && isFinite(fast) && fast > 0;
  const list = [];
  const add = (key, values = {}, speed = 0) => list.push(speed > 0 ? {key: key + 'Speed', values: {...values, speed: rough(speed)}} : {key, values});

  if (slow.length > 0 && away > 0)
    add(gpu ? 'moreVram' : 'moreRam', {more: bytes(away)}, known ? Math.max(plan.tokens_per_second, fast / used) : 0);
  const bits = parameters > 0 ? 8 * size / parameters : 0;
  if (bits > BITS + 0.7) {
    const factor = BITS / bits, stillAway = Math.max(0, size * factor - here);
    const slowBytes = away > 0 ? sum(slow, 'bytes_per_token') * Math.min(1, stillAway / away) : 0;
    const seconds = Math.max(used * factor / fast, slowRate > 0 ? slowBytes / slowRate : 0);
    add('fewerBits', {bits: number(bits, 1), to: 'Q4_K_M', size: bytes(size * factor)}, known ? 1 / seconds : 0);
  }
  if (list.length === 0) add(gpu ? 'allInVram' : 'allInRam');
  if (pass_ns > 0 && stall_ns / pass_ns > 0.3) add('waits', {percent: number(100 * Math.min(1, stall_ns / pass_ns))});
  if (queued > 0 && live >= most) add('moreParallel', {queued: number(queued), most: number(most)});
  if (!known) add('calibrate');
  return list;
}
