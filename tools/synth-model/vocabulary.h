// Made-up vocabularies of any size that real tokenizers accept: every text can be encoded, every id decoded.
// Thread-safety: pure functions.
#pragma once

#include "base/status.h"
#include "modelfile/gguf_writer.h"
#include "synth-model/shapes.h"

namespace millrace::synth {

/// Adds the tokenizer.* keys for exactly shape.vocab tokens: SentencePiece style with byte tokens for a llama of at
/// most 32,768 tokens, byte-level BPE with a few merges for everything else. Errors: those of Writer::add.
Status add_vocabulary(const Shape& shape, modelfile::Writer& writer);

}  // namespace millrace::synth
