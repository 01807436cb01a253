// Runs llama.cpp's own bench once: node bench.mjs MODEL PROMPT_TOKENS DECODE_TOKENS THREADS -> {"prompt_tok_s", "decode_tok_s"}
import { loadModel } from '@fugood/llama.node'

const [model, prompt, decode, threads] = process.argv.slice(2)
const context = await loadModel({
  model,
  n_threads: Number(threads),
  n_ctx: Number(prompt) + Number(decode) + 64,
  n_batch: 512,
  n_ubatch: 512,
  n_gpu_layers: 0,
  use_mmap: true,
})
// The first, short round warms the page cache and the threads.
if (!process.env.PEER_COLD) await context.bench(Math.min(32, Number(prompt)), 4, 1, 1)
const result = await context.bench(Number(prompt), Number(decode), 1, 1)
console.log(JSON.stringify({ prompt_tok_s: result.speedPp, decode_tok_s: result.speedTg }))
process.exit(0)
