// llama.cpp's tokens and greedy text: node peer.mjs MODEL < texts (a JSON list) > one JSON object a text.
import { loadModel } from '@fugood/llama.node'
import { readFileSync } from 'node:fs'

const context = await loadModel({ model: process.argv[2], n_threads: 2, n_ctx: 512, n_batch: 512, n_gpu_layers: 0, use_mmap: true })
for (const text of JSON.parse(readFileSync(0, 'utf8'))) {
  const { tokens } = await context.tokenize(text)
  const done = await context.completion({ prompt: text, n_predict: 12, temperature: 0, top_k: 1, n_probs: 2, ignore_eos: false })
  const picked = (done.completion_probabilities ?? []).map((one) => one.probs.map((each) => [each.tok_str, each.prob]))
  console.log(JSON.stringify({ tokens: Array.from(tokens), text: done.text, picked }))
}
process.exit(0)
