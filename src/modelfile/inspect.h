// What `millrace inspect FILE` prints: a model file for a person to read. Names and texts from the file are escaped, so
// that no file can write to the terminal what it likes.
// Thread-safety: a pure function.
#pragma once

#include <cstddef>
#include <string>

#include "modelfile/gguf.h"

namespace millrace::modelfile {

struct InspectOptions {
  bool tensors = false;  // every tensor with its file offset, instead of one line for the same in all layers
  std::size_t text_characters = 72;  // longer texts are cut; 0: whole (a chat template in full)
  std::size_t array_elements = 4;    // longer arrays are cut; 0: all
};

/// Lines that end in '\n': a summary (parameters, bytes, bits a weight, bytes a token reads), hyperparameters, all
/// metadata, sizes by type, tensors. Parts that the file cannot answer are left out.
std::string render_inspect(const Model& model, const InspectOptions& options = {});

}  // namespace millrace::modelfile
